import { afterEach, expect, test, vi } from 'vitest';
import { api, ApiError } from './api';

afterEach(() => vi.unstubAllGlobals());

test('a server that is not ready is heard, not taken for one that fails', async () => {
  const state = { ready: false, problems: ['the disk is full'], running: 0, queued: 2 };
  vi.stubGlobal('fetch', async () => new Response(JSON.stringify(state), { status: 503 }));
  expect(await api.ready()).toEqual(state);
  await expect(api.stats('x')).rejects.toThrow(ApiError);
});

test('an error names the invalid field once', async () => {
  const message = async (detail: string, field?: string) => {
    vi.stubGlobal('fetch', async () => new Response(JSON.stringify({ status: 422, code: 'invalid_field', detail, field }), { status: 422 }));
    return api.job('x').then(() => '', (error: Error) => error.message);
  };
  expect(await message('is empty', 'steps[0].command')).toBe('steps[0].command: is empty');
  expect(await message('`limits` has no field `speed`', 'limits.speed')).toBe('`limits` has no field `speed`');
  expect(await message('the body must be a JSON object: {...}')).toBe('the body must be a JSON object: {...}');
});

test('what is asked again and again waits less long than what is asked once', async () => {
  const waits: number[] = [];
  vi.spyOn(AbortSignal, 'timeout').mockImplementation((milliseconds) => { waits.push(milliseconds); return new AbortController().signal; });
  vi.stubGlobal('fetch', async () => new Response('{}'));
  await Promise.all([api.jobs(new URLSearchParams()), api.stats('x'), api.ports('x'), api.ready()]);
  expect(waits).toEqual([10_000, 10_000, 10_000, 10_000]);
  waits.length = 0;
  await api.file('x', 'a');
  expect(waits[0]).toBeGreaterThan(30_000);
  vi.restoreAllMocks();
});

test('an order is answered or it is not, while a file may take any time to be sent', async () => {
  const signals: (AbortSignal | null | undefined)[] = [];
  vi.stubGlobal('fetch', async (_: string, options: RequestInit) => { signals.push(options.signal); return new Response('{}'); });
  await api.cancel('x');
  await api.remove('x');
  await api.save('x', 'a', new Blob(['much']));
  await api.save('x', 'a', 'text');
  expect(signals.map(Boolean)).toEqual([true, true, false, false]);
  vi.stubGlobal('fetch', async () => { throw new TypeError('lost'); });
  await expect(api.cancel('x')).rejects.toThrow('It may have processed the request all the same.');
  await expect(api.job('x')).rejects.toThrow(/not answer\.$/);
});
