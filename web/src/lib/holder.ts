// The holder of a takeover: only the holder's browser may use the job's sandbox and hand the job back. The server
// keeps the token in a cookie for its own origin. The notebook has another origin, which receives the token once.

import { ApiError, post, type Schemas } from './api';
import { keep, kept } from './storage';

const keyOf = (id: string) => `held-${id}`;

interface Mark {
  token: string;
  /** The sequence number of this browser's takeover event; after another takeover the mark is invalid. */
  since: number;
}

function markOf(id: string): Mark | null {
  try {
    return JSON.parse(kept(keyOf(id)) ?? 'null') as Mark | null;
  } catch {
    return null;
  }
}

export const holders = {
  async takeOver(id: string, by?: string | null): Promise<void> {
    const answer = await post<Schemas['TakeoverAnswer']>(`/v1/jobs/${id}/takeover`, by ? { by } : {});
    const mark: Mark = { token: answer.token, since: answer.agent?.holder?.since ?? 0 };
    keep(keyOf(id), JSON.stringify(mark));
  },

  /** This browser's takeover token, or `null` if this browser is not the holder. */
  tokenOf(id: string, since: number): string | null {
    const mark = markOf(id);
    return mark?.since === since ? mark.token : null;
  },

  forget: (id: string): void => keep(keyOf(id), null),

  /** Hands the job back; forces it if another browser is the holder and its user is gone. */
  async handBack(id: string, since: number): Promise<void> {
    if (holders.tokenOf(id, since) !== null) {
      try {
        await post(`/v1/jobs/${id}/handback`);
        return holders.forget(id);
      } catch (error) {
        if (!(error instanceof ApiError && error.code === 'taken_over')) throw error;
        holders.forget(id);
      }
    }
    if (!confirm('This job was taken over in another browser. Hand it back anyway?')) return;
    await post(`/v1/jobs/${id}/handback`, { force: true });
  },
};
