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
        { button: 'Accept', then: 'The agent follows this plan, including your edits.' },
        { button: 'Reject', then: 'The agent reads your reason and writes another plan.' },
      ];
    case 'egress':
      return [
        { button: 'Allow for this job', then: `Allows this connection, and every later one of this job that matches the rule ${ask.egress?.rule ?? ''}.` },
        { button: 'Allow once', then: 'Allows only this connection; the next one asks again.' },
        { button: 'Refuse', then: 'The connection fails, and the job continues without it.' },
      ];
    default:
      return [
        { button: 'Allow', then: 'The agent runs it once.' },
        { button: 'Refuse', then: 'The command does not run. The agent reads your reason and continues.' },
      ];
  }
}

const NO_ANSWER: Record<string, string> = {
  question: 'the agent continues without an answer', plan: 'the plan is rejected and the agent ends the job as failed', command: 'the command does not run and the agent continues',
};

/** What happens without an answer. `wait` is how long a connection waits, in milliseconds. */
export function withoutAnswer(ask: Ask, wait: number, now: number): string {
  if (ask.kind === 'egress') {
    const what = wait > 0 ? `Each attempt fails after ${duration(wait)}` : 'Each attempt fails at once';
    return `${what}; your answer applies to the next attempt.`;
  }
  const then = NO_ANSWER[ask.kind] ?? 'the agent continues without an answer';
  if (!ask.deadline_ms) return 'The job waits for an answer.';
  const when = until(ask.deadline_ms, now);
  return `The request expires ${when}; then ${then}.`;
}
