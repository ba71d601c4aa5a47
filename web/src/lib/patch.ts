// A unified diff, parsed into files and lines for display.

export interface PatchLine {
  kind: 'added' | 'removed' | 'same' | 'gap';
  /** The line without its leading marker. */
  text: string;
}

export interface PatchPart {
  /** The file's new path, or its old path if it is deleted. */
  path: string;
  lines: PatchLine[];
}

const nameIn = (line: string) => line.slice(4).split('\t', 1)[0]!.trim().replace(/^[ab]\//, '');

/** `null` if the text is not a unified diff. */
export function partsOf(patch: string): PatchPart[] | null {
  const parts: PatchPart[] = [];
  let before = '';
  let part: PatchPart | null = null;
  const lines = patch.replace(/\n$/, '').split('\n');
  for (const [index, line] of lines.entries()) {
    if (line.startsWith('--- ') && lines[index + 1]?.startsWith('+++ ')) {
      before = nameIn(line);
      part = null;
    } else if (line.startsWith('+++ ') && part === null) {
      const after = nameIn(line);
      part = { path: after === '/dev/null' ? before : after, lines: [] };
      parts.push(part);
    } else if (part === null || /^(diff --git |index |new file |deleted file |similarity |rename )/.test(line)) continue;
    else if (line.startsWith('@@')) part.lines.push({ kind: 'gap', text: line });
    else if (line.startsWith('+')) part.lines.push({ kind: 'added', text: line.slice(1) });
    else if (line.startsWith('-')) part.lines.push({ kind: 'removed', text: line.slice(1) });
    else if (!line.startsWith('\\')) part.lines.push({ kind: 'same', text: line.slice(1) });
  }
  return parts.length > 0 ? parts : null;
}
