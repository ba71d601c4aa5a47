// A tool call's input, split into code, an edit, and the rest.

type Input = Record<string, unknown> | null | undefined;

const CODE_FIELDS = ['command', 'code', 'content', 'patch', 'script', 'expression'];
const ENDINGS: Record<string, string> = { python: 'py', typescript: 'ts', shell: 'sh', browser: 'js' };

/** The change that an editing tool makes. */
export function editedText(tool: string, input: Input): { path: string; before: string; after: string } | null {
  if (tool !== 'edit_file' || typeof input?.old !== 'string') return null;
  return { path: String(input.path ?? ''), before: input.old, after: String(input.new ?? '') };
}

/** The code that the call runs or writes, if it is longer than a line. */
export function givenCode(tool: string, input: Input): { path: string; text: string } | null {
  const text = CODE_FIELDS.map((field) => input?.[field]).find((value) => typeof value === 'string') as string | undefined;
  if (text === undefined) return null;
  const isShort = !text.trimEnd().includes('\n') && text.length <= 100;
  if (isShort && tool !== 'write_file') return null;
  const path = input?.patch === text ? 'x.diff' : typeof input?.path === 'string' ? input.path : `x.${ENDINGS[tool] ?? 'txt'}`;
  return { path, text };
}

/** Everything else as text. */
export function otherInput(tool: string, input: Input): [string, string][] {
  const hidden = new Set([...CODE_FIELDS, 'tool', 'old', 'new', ...(tool.endsWith('_file') ? ['path'] : [])]);
  return Object.entries(input ?? {})
    .filter(([name, value]) => !hidden.has(name) && value !== null && value !== '' && value !== undefined)
    .map(([name, value]) => [name, typeof value === 'string' ? value : JSON.stringify(value)]);
}
