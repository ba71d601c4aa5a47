// What was written in files of jobs and not saved: it stays while the page is open, whichever view is shown, and the browser asks
// before the page goes.

import type { TextFile } from './text-file';

export interface Unsaved {
  /** As it was read. */
  read: TextFile;
  /** As it was changed. */
  edited: string;
}

const drafts = new Map<string, Map<string, Unsaved>>();

function ask(event: BeforeUnloadEvent): void {
  event.preventDefault();
}

export const unsaved = {
  of: (job: string, path: string): Unsaved | undefined => drafts.get(job)?.get(path),

  /** The files of a job that have one, in the order of the changes. */
  paths: (job: string): string[] => [...(drafts.get(job)?.keys() ?? [])],

  /** Nothing forgets it. */
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
