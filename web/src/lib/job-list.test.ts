import { afterEach, expect, test, vi } from 'vitest';
import type { JobSummary } from './api';
import { JobList, merged } from './job-list.svelte';

const job = (id: string, name = 'old') => ({ job_id: id, name }) as JobSummary;
const told = (jobs: JobSummary[]) => jobs.map((one) => `${one.job_id}${one.name === 'new' ? '!' : ''}`).join(' ');

test('a page is right in what it covers, and what is beyond stays', () => {
  const known = ['9', '8', '7', '6', '5', '4', '3'].map((id) => job(id));
  expect(told(merged(known, { jobs: [job('9', 'new'), job('8', 'new')], next: '8' }, null))).toBe('9! 8! 7 6 5 4 3');
  // Job six was deleted: the page covering seven down to four does not contain it.
  expect(told(merged(known, { jobs: [job('5', 'new'), job('4', 'new')], next: '4' }, '7'))).toBe('9 8 7 5! 4! 3');
  expect(told(merged(known, { jobs: [job('9', 'new')], next: null }, null))).toBe('9!');
});

afterEach(() => vi.unstubAllGlobals());

/** A fake server that answers by the `before` of each request. */
function serve(pages: Record<string, object | number>): string[] {
  const asked: string[] = [];
  vi.stubGlobal('fetch', async (path: string) => {
    const before = new URLSearchParams(path.split('?')[1]).get('before') ?? 'newest';
    asked.push(before);
    const page = pages[before];
    return typeof page === 'number' ? new Response('{"detail":"busy"}', { status: page }) : new Response(JSON.stringify(page));
  });
  return asked;
}

test('a search goes on until something is found', async () => {
  const asked = serve({ newest: { jobs: [], next: '8' }, 8: { jobs: [], next: '5' }, 5: { jobs: [job('2')], next: null } });
  const list = new JobList();
  list.restart('', 'rare');
  await vi.waitFor(() => expect(told(list.jobs)).toBe('2'));
  expect([asked.join(' '), list.hasMore]).toEqual(['newest 8 5', false]);
});

test('a page that failed is asked for again', async () => {
  const pages: Record<string, object | number> = { newest: { jobs: [job('9')], next: '9' }, 9: 503 };
  serve(pages);
  const list = new JobList();
  list.restart('', '');
  list.seen = { first: 0, last: 1 };
  await vi.waitFor(() => expect(list.problem).toBe('busy'));
  expect(list.hasMore).toBe(true);
  pages[9] = { jobs: [job('4')], next: null };
  await list.refresh();
  await vi.waitFor(() => expect(told(list.jobs)).toBe('9 4'));
});

test('rows beyond the newest page are asked for again while they are seen', async () => {
  const old = ['7', '6', '5'].map((id) => job(id));
  const pages: Record<string, object | number> = { newest: { jobs: [job('9'), job('8')], next: '8' }, 8: { jobs: old, next: null } };
  serve(pages);
  const list = new JobList();
  list.restart('', '');
  await vi.waitFor(() => expect(told(list.jobs)).toBe('9 8'));
  await list.more();
  expect(told(list.jobs)).toBe('9 8 7 6 5');
  list.seen = { first: 3, last: 5 };
  pages[7] = { jobs: [job('6', 'new')], next: null };
  await list.refresh();
  await vi.waitFor(() => expect(told(list.jobs)).toBe('9 8 7 6!'));
  list.drop('7');
  expect(told(list.jobs)).toBe('9 8 6!');
});
