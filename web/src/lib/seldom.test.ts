import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { seldom } from './seldom';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test('what is asked for many times is done at once and once more', async () => {
  let done = 0;
  const ask = seldom(async () => { done += 1; }, 500);
  for (let turn = 0; turn < 50; turn += 1) ask();
  expect(done).toBe(1);
  await vi.advanceTimersByTimeAsync(499);
  expect(done).toBe(1);
  await vi.advanceTimersByTimeAsync(2000);
  expect(done).toBe(2);
  ask();
  expect(done).toBe(3);
});

test('one that fails does not keep the next from being done, and none begins before the last is over', async () => {
  const ends: ((error?: Error) => void)[] = [];
  const ask = seldom(() => new Promise((done, failed) => ends.push((error) => (error ? failed(error) : done()))), 500);
  ask();
  ask();
  await vi.advanceTimersByTimeAsync(5000);
  expect(ends).toHaveLength(1);
  ends[0]?.(new Error('no'));
  await vi.advanceTimersByTimeAsync(600);
  expect(ends).toHaveLength(2);
});
