import { expect, test } from 'vitest';
import { ReloadLoop } from './reload-loop';

const isLoop = (gap: number, loads: number) => {
  const loop = new ReloadLoop();
  return Array.from({ length: loads }, (_, index) => loop.loaded(index * gap)).some(Boolean);
};

test('a page that reloads itself again and again is in a loop, on a slow machine too', () => {
  expect([isLoop(700, 5), isLoop(700, 6)]).toEqual([false, true]);
  expect([isLoop(4000, 19), isLoop(4000, 20)]).toEqual([false, true]);
});

test('a page that waits for its server is not, nor one that is loaded now and then', () => {
  expect(isLoop(2200, 15)).toBe(false);
  expect(isLoop(11_000, 100)).toBe(false);
});
