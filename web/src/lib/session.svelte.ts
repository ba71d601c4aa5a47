// The logged-in user, if the server requires keys.

import { ApiError, get, post, remove, unauthorized, type Schemas } from './api';

type Session = Schemas['SessionAnswer'];

const AGAIN_MS = 1500;

class Who {
  /** `null` until the server has answered. */
  session = $state.raw<Session | null>(null);
  problem = $state('');
  #timer: number | undefined;

  /** Retries until the server has answered once. */
  async ask(): Promise<void> {
    clearTimeout(this.#timer);
    try {
      this.session = await get<Session>('/v1/session');
      this.problem = '';
    } catch (error) {
      this.problem = error instanceof ApiError ? error.message : String(error);
      if (this.session === null) this.#timer = window.setTimeout(() => void this.ask(), AGAIN_MS);
    }
  }

  async logIn(key: string): Promise<void> {
    this.session = await post<Session>('/v1/session', { key });
  }

  async logOut(): Promise<void> {
    await remove('/v1/session');
    await this.ask();
  }

  get mustLogIn(): boolean {
    return this.session !== null && this.session.needs_key && !this.session.role;
  }

  get isAdmin(): boolean {
    return this.session?.role === 'admin';
  }

  /** Whether the user may work in sandboxes, rather than only look. */
  get mayWork(): boolean {
    return this.session?.role !== 'viewer';
  }
}

export const who = new Who();
// After a revoked key or an expired login, asks the server again who the user is.
unauthorized.tell = () => void who.ask();
