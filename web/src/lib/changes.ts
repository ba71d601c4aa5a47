// What a job has changed in its workspace, as far as the log reveals it.

import { clean, type FilesChanged, type KnownFile } from './known';

export type Change = 'added' | 'changed' | 'removed';
type Changes = ReadonlyMap<string, Change>;
type Files = ReadonlyMap<string, KnownFile>;

/** The server's own files in the workspace. */
const OWN = /^\.caisson(\/|$)/;

function put(changes: Map<string, Change>, path: string, wasThere: boolean): void {
  if (path === '' || OWN.test(path)) return;
  const before = changes.get(path);
  changes.set(path, before === 'added' ? 'added' : wasThere || before !== undefined ? 'changed' : 'added');
}

function take(changes: Map<string, Change>, path: string): void {
  if (path === '' || OWN.test(path)) return;
  if (changes.get(path) === 'added') changes.delete(path);
  else changes.set(path, 'removed');
}

/** The changes after one more call of a file tool. `files` are the files before it. */
export function changedByTool(changes: Changes, files: Files, tool: string, input: any): Map<string, Change> {
  const next = new Map(changes);
  const path = clean(input?.path);
  if (tool === 'write_file') put(next, path, files.has(path));
  else if (tool === 'edit_file') put(next, path, true);
  else if (tool === 'move_file') {
    take(next, clean(input?.from));
    put(next, clean(input?.to), files.has(clean(input?.to)));
  } else if (tool === 'delete_file') {
    const inside = [...files.keys()].filter((one) => one.startsWith(`${path}/`));
    for (const one of inside.length > 0 ? inside : [path]) take(next, one);
  }
  return next;
}

/** Whether a listed file is as it was known, as far as that can be told. */
function isSame(known: KnownFile | undefined, file: { size?: number; content?: string }): boolean {
  if (known === undefined || known.size !== (file.size ?? known.size)) return false;
  return known.content === null || file.content === undefined || known.content === file.content;
}

/**
 * The changes after a scan of the workspace. `files` are the files before it. The first scan of a cloned repository
 * lists what the repository has, which the job did not change.
 */
export function changedByScan(changes: Changes, files: Files, found: FilesChanged, isBaseline: boolean): Map<string, Change> {
  const next = new Map(changes);
  if (isBaseline) return next;
  for (const file of found.files ?? []) {
    const known = files.get(file.path);
    if (file.removed) take(next, file.path);
    else if (!found.whole || !isSame(known, file)) put(next, file.path, known !== undefined);
  }
  if (!found.whole) return next;
  // A list of all files shows which ones are gone, unless a tool wrote them after the scan.
  const listed = new Set((found.files ?? []).map((file) => file.path));
  for (const [path, file] of files) {
    if (!listed.has(path) && file.at <= (found.seen_after ?? file.at) && !found.left_out) take(next, path);
  }
  return next;
}
