// Files that were dropped or chosen, with their place below what was dropped: folders are walked.

export interface Dropped {
  path: string;
  file: File;
}

export function chosenFiles(list: FileList | null | undefined): Dropped[] {
  return [...(list ?? [])].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
}

/** What was dropped can be asked for only while the event is handled; the folders in it are read afterwards. */
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
  // A reader gives a part of a large folder at a time, and nothing when all was given.
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((done, failed) => reader.readEntries(done, failed));
    if (some.length === 0) break;
    inside.push(...some);
  }
  return (await Promise.all(inside.map(walk))).flat();
}
