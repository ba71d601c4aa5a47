import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { LiveJob } from './live.svelte';

/** A fake server: the first entry whose key occurs in the path gives the response. */
let answers: [string, () => Promise<Response>][] = [];
const json = (body: unknown, status = 200) => async () => new Response(JSON.stringify(body), { status });
const silence = () => new Promise<Response>(() => undefined);

const WAIT = { timeout: 30_000 };

beforeEach(() => {
  vi.stubGlobal('document', { addEventListener: () => undefined, removeEventListener: () => undefined, visibilityState: 'visible' });
  vi.stubGlobal('window', globalThis);
  vi.stubGlobal('fetch', (path: string) => answers.find(([part]) => path.includes(part))?.[1]() ?? silence());
}, 60_000);
afterEach(() => vi.unstubAllGlobals());

test('an address that is refused ends with the words of the server and is not asked again', async () => {
  for (const [status, isMissing] of [[400, false], [403, false], [404, true]] as const) {
    let asked = 0;
    answers = [['/v1/jobs/abc', () => { asked += 1; return json({ code: 'x', detail: 'not an id' }, status)(); }]];
    const live = new LiveJob('abc');
    await vi.waitFor(() => expect(live.connection).toBe('gone'), WAIT);
    expect(live.problem).toBe('not an id');
    expect(live.isMissing).toBe(isMissing);
    expect(asked).toBe(1);
    live.close();
  }
}, 60_000);

test('an answer that a newer one has overtaken is not shown', async () => {
  answers = [['format=json', json({ events: [] })], ['/events', silence], ['/v1/jobs/abc', json({ state: 'first' })]];
  const live = new LiveJob('abc');
  await vi.waitFor(() => expect(live.job).toMatchObject({ state: 'first' }), WAIT);
  const waiting: ((response: Response) => void)[] = [];
  answers = [['/v1/jobs/abc', () => new Promise((done) => waiting.push(done))]];
  const [older, newer] = [live.refresh(), live.refresh()];
  waiting[1]?.(new Response(JSON.stringify({ state: 'newer' })));
  await newer;
  waiting[0]?.(new Response(JSON.stringify({ state: 'older' })));
  await older;
  expect(live.job).toMatchObject({ state: 'newer' });
  live.close();
}, 60_000);

test('a long past is one question, not one for each change of state', async () => {
  let asked = 0;
  const events = Array.from({ length: 40 }, (_, index) => ({ sequence: index + 1, time_ms: 1, kind: 'state_changed', data: { state: 'running' } }));
  let isListening = false;
  answers = [
    ['format=json', json({ events })], ['/events', () => { isListening = true; return silence(); }],
    ['/v1/jobs/abc', () => { asked += 1; return json({ state: 'running' })(); }],
  ];
  const live = new LiveJob('abc');
  await vi.waitFor(() => expect(isListening).toBe(true), WAIT);
  expect(live.view.last).toBe(40);
  expect(asked).toBe(2);
  live.close();
}, 60_000);

test('a page that nobody sees looks now and then, until the job is over', async () => {
  vi.useFakeTimers();
  let seen = () => undefined as void;
  const page = { addEventListener: (_: string, heard: () => void) => { seen = heard; }, removeEventListener: () => undefined, visibilityState: 'visible' };
  vi.stubGlobal('document', page);
  let events: object[] = [];
  let asked = 0;
  answers = [
    ['format=json', () => { asked += 1; return json({ events })(); }], ['/events', silence], ['/v1/jobs/abc', json({ state: 'running' })],
  ];
  const live = new LiveJob('abc');
  await vi.advanceTimersByTimeAsync(100);
  page.visibilityState = 'hidden';
  seen();
  await vi.advanceTimersByTimeAsync(6000);
  expect([live.connection, asked]).toEqual(['asleep', 1]);
  events = [{ sequence: 1, time_ms: 1, kind: 'input_requested', data: { id: 'r', kind: 'question', text: 'why?' } }];
  await vi.advanceTimersByTimeAsync(15_000);
  expect([live.connection, live.view.asks.length]).toEqual(['asleep', 1]);
  events = [{ sequence: 2, time_ms: 1, kind: 'state_changed', data: { state: 'complete' } }];
  await vi.advanceTimersByTimeAsync(15_000);
  const until = asked;
  await vi.advanceTimersByTimeAsync(120_000);
  expect(asked).toBe(until);
  live.close();
  vi.useRealTimers();
}, 60_000);

test('a replay goes back to what it was, however long it is', async () => {
  const events = Array.from({ length: 9000 }, (_, index) => ({ sequence: index + 1, time_ms: 1, kind: 'note', data: { text: `${index + 1}` } }));
  answers = [
    ['format=json', () => silence()], ['/events', silence], ['/v1/jobs/abc', json({ state: 'running' })],
  ];
  const live = new LiveJob('abc');
  live.events = events;
  for (const at of [9000, 8999, 4001, 4000, 3999, 1, 0, 6000, 5000]) {
    const past = live.at(at);
    expect([past.last, past.items.length, (past.items.at(-1) as { text?: string } | undefined)?.text]).toEqual([at, at, at ? `${at}` : undefined]);
  }
  live.close();
}, 60_000);
