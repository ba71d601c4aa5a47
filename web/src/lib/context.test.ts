import { expect, test } from 'vitest';
import { fromText, readContext } from './context';

test('a prompt as text is cut at its headings and nowhere else', () => {
  const segments = fromText('# system\nYou are.\n# Title of a page\nmore\n# user\nhello\n');
  expect(segments.map((segment) => segment.kind)).toEqual(['system', 'user']);
  expect(segments[0]?.text).toContain('# Title of a page');
});

test('segments come with their cost and what they stand for', async () => {
  const body = { tokens: 30, budget: 100, segments: [{ kind: 'summary', role: 'user', level: 2, covers: 'e1-e9', tokens: 30, text: 'short' }] };
  const context = await readContext(new Response(JSON.stringify(body), { headers: { 'content-type': 'application/json' } }));
  expect(context).toEqual({ tokens: 30, budget: 100, segments: [{ kind: 'summary', note: 'user · e1-e9 · level 2', tokens: 30, text: 'short' }] });
});
