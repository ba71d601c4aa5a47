// What happens after each answer to an input request, and without one.

import { duration, until } from './format';
import type { Ask } from './folded';

export interface Consequence {
  /** The label of the button. */
  button: string;
  then: string;
}

export const TITLES: Record<string, string> = {
  question: 'The agent has a question', plan: 'Accept this plan?', command: 'Allow this command?', egress: 'Allow this connection?',
};

export function consequencesOf(ask: Ask): Consequence[] {
  switch (ask.kind) {
    case 'question':
      return [{ button: 'Answer', then: 'The agent reads your answer and continues.' }];
    case 'plan':
      return [
        { button: 'Accept', then: 'The agent works by this plan, with your edits if you made any.' },
        { button: 'Reject', then: 'The agent reads your reason and writes another plan.' },
      ];
    case 'egress':
      return [
        { button: 'Allow for this job', then: `The connection goes through, and so does every other one of this job that the rule ${ask.egress?.rule ?? ''} allows.` },
        { button: 'Allow once', then: 'Only this connection goes through; the next one asks again.' },
        { button: 'Refuse', then: 'The connection fails, and the job continues without it.' },
      ];
    default:
      return [
        { button: 'Allow', then: 'The agent runs it once.' },
        { button: 'Refuse', then: 'It is not run; the agent reads your reason and continues.' },
      ];
  }
}

const NO_ANSWER: Record<string, string> = {
  question: 'the agent continues without one', plan: 'the plan is rejected and the agent ends the job as failed', command: 'it is not run and the agent continues',
};

/** What happens without an answer. `wait` is how long a connection waits, in milliseconds. */
export function withoutAnswer(ask: Ask, wait: number, now: number): string {
  if (ask.kind === 'egress') {
    const what = wait > 0 ? `Each attempt fails after ${duration(wait)}` : 'Each attempt fails at once';
    return `${what}; your answer applies to the next attempt.`;
  }
  const then = NO_ANSWER[ask.kind] ?? 'the agent continues without one';
  if (!ask.deadline_ms) return 'The job waits for an answer.';
  const when = until(ask.deadline_ms, now);
  return `${when.charAt(0).toUpperCase()}${when.slice(1)}, ${then}.`;
}
