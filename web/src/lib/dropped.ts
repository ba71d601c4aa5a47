// Dropped or chosen files with their relative paths; walks folders.

export interface Dropped {
  path: string;
  file: File;
}

export function chosenFiles(list: FileList | null | undefined): Dropped[] {
  return [...(list ?? [])].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
}

/** Dropped items are accessible only during the event; the folders among them are read afterwards. */
export function droppedFiles(transfer: DataTransfer | null): Promise<Dropped[]> {
  const entries = [...(transfer?.items ?? [])].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  if (entries.length === 0) return Promise.resolve(chosenFiles(transfer?.files));
  return Promise.all(entries.map(walk)).then((found) => found.flat());
}

async function walk(entry: FileSystemEntry): Promise<Dropped[]> {
  const path = entry.fullPath.replace(/^\//, '');
  if (entry.isFile) {
    const file = await new Promise<File>((done, failed) => (entry as FileSystemFileEntry).file(done, failed));
    return [{ path, file }];
  }
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  const inside: FileSystemEntry[] = [];
  // A reader returns a large folder in parts, and an empty array at the end.
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((done, failed) => reader.readEntries(done, failed));
    if (some.length === 0) break;
    inside.push(...some);
  }
  return (await Promise.all(inside.map(walk))).flat();
}
