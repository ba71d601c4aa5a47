import { expect, test, vi } from 'vitest';

vi.stubGlobal('location', { hash: '' });
vi.stubGlobal('addEventListener', () => undefined);
const { links, parse } = await import('./route.svelte');

test('addresses lead to their views', () => {
  expect(parse('')).toEqual({ view: 'start', mode: 'task' });
  expect(parse('#/steps')).toEqual({ view: 'start', mode: 'steps' });
  expect(parse('#/jobs?state=failed')).toMatchObject({ view: 'jobs', states: 'failed' });
  expect(parse(links.job('abc', ['files', 'network'], 7))).toEqual({ view: 'job', id: 'abc', panes: ['files', 'network'], at: 7, file: null });
  expect(parse(links.file('abc', 'a b/c&d.txt'))).toMatchObject({ panes: ['files'], file: 'a b/c&d.txt' });
});

test('an unknown address leads to no other view', () => {
  for (const hash of ['#/nonsense', '#/admin/keys', '#/steps/2', '#/jobs/abc/files/more', '#/shared', '#main']) expect(parse(hash), hash).toEqual({ view: 'missing' });
});
