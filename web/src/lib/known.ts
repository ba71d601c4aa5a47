// Files as the log reveals them: what file tools wrote, edited, moved and deleted, and what changed during a command.

export interface KnownFile {
  /** The content; `null` if the log does not have it because it was too large or not text. */
  content: string | null;
  size: number;
  /** The sequence number of the event that reported it. */
  at: number;
}

/** What the server found after calls that do not say what they write. */
export interface FilesChanged {
  /** Lists all files, not only the changed ones. */
  whole?: boolean;
  /** A file that a tool wrote after this event is newer than this list. */
  seen_after?: number;
  /** The number of changed files that are not listed. */
  left_out?: number;
  files: { path: string; size?: number; content?: string; removed?: boolean }[];
}

export function takeFound(files: Map<string, KnownFile>, found: FilesChanged, at: number): Map<string, KnownFile> {
  const isNewer = (file?: KnownFile) => file !== undefined && file.at > (found.seen_after ?? at);
  const next = new Map([...files].filter(([, file]) => !found.whole || isNewer(file)));
  for (const file of found.files ?? []) {
    if (isNewer(next.get(file.path))) continue;
    if (file.removed) next.delete(file.path);
    else next.set(file.path, { content: file.content ?? null, size: file.size ?? file.content?.length ?? 0, at });
  }
  return next;
}

/** The files after one more tool call. Does not modify the given map. */
export function changeFiles(files: Map<string, KnownFile>, tool: string, input: any, at: number): Map<string, KnownFile> {
  switch (tool) {
    case 'write_file':
      return typeof input?.content === 'string' ? withFile(files, input.path, input.content, at) : files;
    case 'edit_file': {
      const known = files.get(clean(input?.path));
      const { old, new: replacement } = input ?? {};
      if (typeof known?.content !== 'string' || typeof old !== 'string' || typeof replacement !== 'string') return files;
      const content = input.all || input.replace_all ? known.content.replaceAll(old, () => replacement) : known.content.replace(old, () => replacement);
      return withFile(files, input.path, content, at);
    }
    case 'move_file': {
      const known = files.get(clean(input?.from));
      if (!known) return files;
      const next = new Map(files).set(clean(input.to), { ...known, at });
      next.delete(clean(input.from));
      return next;
    }
    case 'delete_file': {
      const gone = clean(input?.path);
      return new Map([...files].filter(([path]) => path !== gone && !path.startsWith(`${gone}/`)));
    }
    default:
      return files;
  }
}

/** The files after a user put one whose content the log does not have. */
export function putFile(files: Map<string, KnownFile>, path: string, size: number, at: number): Map<string, KnownFile> {
  return new Map(files).set(clean(path), { content: null, size, at });
}

function withFile(files: Map<string, KnownFile>, path: unknown, content: string, at: number): Map<string, KnownFile> {
  return new Map(files).set(clean(path), { content, size: content.length, at });
}

/** Normalizes a path to be relative to the workspace. */
export function clean(path: unknown): string {
  return String(path ?? '').replace(/^\/workspace\//, '').replace(/^\.\//, '').replace(/\/+$/, '');
}
