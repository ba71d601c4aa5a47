import { expect, test } from 'vitest';
import { isNumber, tableOf } from './table';

test('numbers are told from words', () => {
  for (const text of ['3', '-1.5', '1,024', '2.5e-3', '99 %', 'NaN', '−7']) expect(isNumber(text)).toBe(true);
  for (const text of ['', 'moon', '3 apples', 'v1.2', '<b>1</b>']) expect(isNumber(text)).toBe(false);
});

test('what has no table is none', () => {
  expect(tableOf('<p>no table</p>')).toBeNull();
  expect(tableOf('<tablet>')).toBeNull();
});
