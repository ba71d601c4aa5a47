// The files known from the log as a tree. Names come from the sandbox, so they are never keys of plain objects.

import type { FileItem } from './api';
import type { KnownFile } from './known';

/** The entries of each folder, folders first. */
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
