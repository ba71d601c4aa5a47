// Unsaved edits of jobs' files: they are kept while the page is open, whichever view is shown, and the browser asks
// before the page is left.

import type { TextFile } from './text-file';

export interface Unsaved {
  /** The file as it was read. */
  read: TextFile;
  /** The edited text. */
  edited: string;
}

const drafts = new Map<string, Map<string, Unsaved>>();

function ask(event: BeforeUnloadEvent): void {
  event.preventDefault();
}

export const unsaved = {
  of: (job: string, path: string): Unsaved | undefined => drafts.get(job)?.get(path),

  /** The paths of a job's unsaved files, in the order of the edits. */
  paths: (job: string): string[] => [...(drafts.get(job)?.keys() ?? [])],

  /** Stores a draft; `null` removes it. */
  set(job: string, path: string, draft: Unsaved | null): void {
    const wasEmpty = drafts.size === 0;
    const own = drafts.get(job) ?? new Map<string, Unsaved>();
    own.delete(path);
    if (draft) own.set(path, draft);
    if (own.size > 0) drafts.set(job, own);
    else drafts.delete(job);
    if (wasEmpty && drafts.size > 0) addEventListener('beforeunload', ask);
    if (!wasEmpty && drafts.size === 0) removeEventListener('beforeunload', ask);
  },
};
