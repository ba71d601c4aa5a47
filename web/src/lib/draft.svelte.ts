// The job on the start page: a copy of another job, or an input that was left unfinished.

import type { Dropped } from './dropped';
import { keep, kept } from './storage';
import type { Template } from './template';

/** The user's input on the start page. */
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

  /** Returns the template once. */
  take(): Template | null {
    const template = this.#template;
    this.#template = null;
    return template;
  }

  /** Text survives a reload; what may contain a password or a file does not. */
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

  /** Call when the job was started, or the user has logged out. */
  forget(): void {
    this.#begun = null;
    keep(NAME, null, 'sessionStorage');
  }
}

export const draft = new Draft();

/** Unsent messages to agents by job, and unsent answers by job and input request. */
export const begunWords = new Map<string, string>();
export const begunAnswers = new Map<string, Record<string, string>>();
