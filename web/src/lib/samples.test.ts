import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Samples } from './samples.svelte';

/** The server's clock is this far behind the browser's. */
const BEHIND_MS = 7000;
const START = 1_700_000_000_000;

beforeEach(() => vi.useFakeTimers({ now: START }));
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

/** A fake server; returns the requests. `seconds` are the times of the recorded samples before `START`. */
function serve(seconds: number[], usage: () => object | number): string[] {
  const asked: string[] = [];
  vi.stubGlobal('fetch', async (path: string) => {
    asked.push(path.replace('/v1/jobs/x/', ''));
    if (path.endsWith('/history')) {
      if (seconds.length === 0) return Response.json({ detail: 'It is busy.' }, { status: 503 });
      const samples = seconds.map((ago) => ({ time_ms: START - BEHIND_MS - ago * 1000, cpus: 0.5, memory_bytes: 10, disk_bytes: 20, processes: ago }));
      return Response.json({ now_ms: Date.now() - BEHIND_MS, limits: {}, disk_total_bytes: 900, memory_peak_bytes: 77, samples });
    }
    const body = usage();
    return typeof body === 'number' ? Response.json({ detail: 'It has no sandbox.' }, { status: body }) : Response.json(body);
  });
  return asked;
}

const stats = (micros: number) => ({ memory_bytes: 30, memory_peak_bytes: 50, cpu_micros: micros, disk_free_bytes: 600, disk_total_bytes: 1000, processes: 3 });

async function measureAfter(samples: Samples, milliseconds: number): Promise<void> {
  vi.setSystemTime(Date.now() + milliseconds);
  await samples.measure();
}

const times = (samples: Samples) => samples.list.map((sample) => (sample.time - START) / 1000);

test('what the server has recorded comes first, by the clock of the browser, and measurements follow', async () => {
  let micros = 0;
  const asked = serve([15, 10, 5], () => stats(micros));
  const samples = new Samples('x');
  await samples.measure();
  expect(times(samples)).toEqual([-15, -10, -5]);
  expect(samples.list[0]).toMatchObject({ cpu: 0.5, memory: 10, disk: 20, processes: 15 });
  micros = 2_000_000;
  await measureAfter(samples, 1000);
  expect(times(samples)).toEqual([-15, -10, -5, 1]);
  expect(samples.list.at(-1)).toMatchObject({ cpu: 2, memory: 30, disk: 400, processes: 3 });
  expect([samples.total, samples.peak]).toEqual([1000, 77]);
  expect(asked).toEqual(['stats/history', 'stats', 'stats']);
});

test('a gap is filled with what the server has recorded meanwhile', async () => {
  const recorded = [5];
  const asked = serve(recorded, () => stats(0));
  const samples = new Samples('x');
  await samples.measure();
  await measureAfter(samples, 1000);
  recorded.push(-10, -20);
  await measureAfter(samples, 30_000);
  expect(asked).toEqual(['stats/history', 'stats', 'stats', 'stats/history', 'stats']);
  expect(times(samples)).toEqual([-5, 10, 20]);
  await measureAfter(samples, 1000);
  expect(times(samples)).toEqual([-5, 10, 20, 32]);
});

test('the recording of a finished job is all there is', async () => {
  const asked = serve([10, 5], () => 409);
  const samples = new Samples('x');
  expect(samples.isLoaded).toBe(false);
  await samples.load();
  expect([times(samples), samples.total, samples.peak, samples.isLoaded, samples.problem]).toEqual([[-10, -5], 900, 77, true, '']);
  expect(asked).toEqual(['stats/history']);
});

test('a sandbox that cannot be measured keeps its recording, and the problem is shown', async () => {
  serve([10, 5], () => 409);
  const samples = new Samples('x');
  await samples.measure();
  expect(samples.problem).toBe('It has no sandbox. The charts show earlier values.');
  expect(times(samples)).toEqual([-10, -5]);
});

test('a recording that could not be loaded is asked for again', async () => {
  const recorded: number[] = [];
  const asked = serve(recorded, () => stats(0));
  const samples = new Samples('x');
  await samples.measure();
  expect([samples.problem, samples.isLoaded]).toEqual(['It is busy. The charts show earlier values.', false]);
  recorded.push(5);
  await measureAfter(samples, 1000);
  expect([samples.problem, times(samples)]).toEqual(['', [-5]]);
  expect(asked).toEqual(['stats/history', 'stats/history', 'stats']);
});
