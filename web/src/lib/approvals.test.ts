import { expect, test } from 'vitest';
import { consequencesOf, TITLES, withoutAnswer } from './approvals';
import type { Ask } from './folded';

const ask = (kind: string, rest: Partial<Ask> = {}): Ask => ({ id: 'r1', kind, text: '', ...rest });

test('every kind of card has a title and says what each of its buttons does', () => {
  for (const kind of Object.keys(TITLES)) expect(consequencesOf(ask(kind)).every((one) => one.button && one.then.endsWith('.'))).toBe(true);
  expect(consequencesOf(ask('egress')).map((one) => one.button)).toEqual(['Allow for this job', 'Allow once', 'Refuse']);
});

test('a card says what happens without an answer and when', () => {
  expect(withoutAnswer(ask('command', { deadline_ms: 3_600_000 * 23 }), 0, 0)).toBe('The request expires in 23 h; then the command does not run and the agent continues.');
  expect(withoutAnswer(ask('question'), 0, 0)).toBe('The job waits for an answer.');
  expect(withoutAnswer(ask('egress'), 0, 0)).toContain('fails at once');
  expect(withoutAnswer(ask('egress'), 30_000, 0)).toContain('fails after 30 s');
});
