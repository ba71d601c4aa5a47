import { expect, test } from 'vitest';
import { Typing } from './typing';

test('letters after those in a field that went away are no shortcuts, until there was a pause', () => {
  const typing = new Typing();
  expect(typing.goesOn(0)).toBe(false);
  typing.wrote(1000);
  expect([1800, 2900, 4000].map((now) => typing.goesOn(now))).toEqual([true, true, true]);
  expect(typing.goesOn(6000)).toBe(false);
});

test('who has pressed something else means it', () => {
  const typing = new Typing();
  typing.wrote(1000);
  typing.left();
  expect(typing.goesOn(1100)).toBe(false);
});
