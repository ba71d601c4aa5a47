// The files that the log knows, as folders. Names come out of a sandbox, so nothing is looked up by them in plain objects.

import type { FileItem } from './api';
import type { KnownFile } from './known';

/** Each folder with what is in it, folders first. */
export type Tree = ReadonlyMap<string, FileItem[]>;

export function treeOf(files: Map<string, KnownFile>): Tree {
  const tree = new Map<string, Map<string, FileItem>>([['', new Map()]]);
  const put = (folder: string, item: FileItem) => {
    const inside = tree.get(folder) ?? new Map<string, FileItem>();
    tree.set(folder, inside.set(item.path, item));
  };
  for (const [path, file] of files) {
    const parts = path.split('/');
    for (let depth = 1; depth < parts.length; depth += 1) {
      const folder = parts.slice(0, depth).join('/');
      put(parts.slice(0, depth - 1).join('/'), { path: folder, kind: 'directory', size: 0, mode: 0o755, modified_ms: 0 });
    }
    put(parts.slice(0, -1).join('/'), { path, kind: 'file', size: file.size, mode: 0o644, modified_ms: 0 });
  }
  return new Map([...tree].map(([folder, items]) => [folder, inOrder([...items.values()])]));
}

/** Folders first, then by name. */
export function inOrder(items: FileItem[]): FileItem[] {
  const rank = (item: FileItem) => (item.kind === 'directory' ? 0 : 1);
  return [...items].sort((a, b) => rank(a) - rank(b) || a.path.localeCompare(b.path));
}
