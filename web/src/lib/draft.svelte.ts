// A job that waits on the start page: one that was copied from another, or one that was begun and left.

import type { Dropped } from './dropped';
import { keep, kept } from './storage';
import type { Template } from './template';

/** What somebody has written and chosen, as the start page has it. */
export interface Begun {
  task: string;
  steps: string;
  options: Record<string, unknown>;
  git: string;
  revision: string;
  files: Dropped[];
}

const NAME = 'begun-job';

class Draft {
  #template: Template | null = null;
  #begun: Begun | null = null;

  set(template: Template): void {
    this.#template = template;
  }

  /** It is taken once. */
  take(): Template | null {
    const template = this.#template;
    this.#template = null;
    return template;
  }

  /** Words also outlive that the page is loaded again; what may hold a password or a file does not. */
  keep(begun: Begun): void {
    this.#begun = begun;
    keep(NAME, JSON.stringify({ task: begun.task, steps: begun.steps }), 'sessionStorage');
  }

  begun(): Partial<Begun> {
    if (this.#begun) return this.#begun;
    try {
      const { task, steps } = JSON.parse(kept(NAME, 'sessionStorage') ?? '{}') as Record<string, unknown>;
      return { ...(typeof task === 'string' && { task }), ...(typeof steps === 'string' && { steps }) };
    } catch {
      return {};
    }
  }

  /** It was started, or its person has gone. */
  forget(): void {
    this.#begun = null;
    keep(NAME, null, 'sessionStorage');
  }
}

export const draft = new Draft();

/** Words to agents that were begun and not sent, by job; answers likewise, by job and then by what was asked. */
export const begunWords = new Map<string, string>();
export const begunAnswers = new Map<string, Record<string, string>>();
