// Who works in a sandbox: while a person has taken a job over, only that person's browser may use it and hand it back. The server
// keeps the browser's right in a cookie for its own address. The notebook has another address, which is shown the token once.

import { ApiError, post, type Schemas } from './api';
import { keep, kept } from './storage';

const keyOf = (id: string) => `held-${id}`;

interface Mark {
  token: string;
  /** The event by which this browser has taken over: after another one the mark is worth nothing. */
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

  /** What shows that this browser is the one that has taken over by this event; nothing where it is not. */
  tokenOf(id: string, since: number): string | null {
    const mark = markOf(id);
    return mark?.since === since ? mark.token : null;
  },

  forget: (id: string): void => keep(keyOf(id), null),

  /** By force where another browser has it and its person is gone. */
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
    if (!confirm('Another browser has taken this job over. Hand it back for that person?')) return;
    await post(`/v1/jobs/${id}/handback`, { force: true });
  },
};
