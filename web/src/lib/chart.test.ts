import { expect, test } from 'vitest';
import { areaOf, heightOf, lineOf, thinned } from './chart';

test('a line ends at the right edge, and a minute fills the width', () => {
  const points = [{ time: 0, value: 0 }, { time: 30_000, value: 5 }, { time: 60_000, value: 10 }];
  expect(lineOf(points, 10)).toBe('M0.0,58.0 L150.0,30.0 L300.0,2.0');
  expect(areaOf(points, 10)).toBe('M0.0,58.0 L150.0,30.0 L300.0,2.0 L300,60 L0.0,60 Z');
  expect(lineOf(points.slice(1), 10)).toBe('M150.0,30.0 L300.0,2.0');
});

test('one point is no line, and a value above the top stays in the box', () => {
  expect([lineOf([{ time: 1, value: 1 }], 1), areaOf([], 1)]).toEqual(['', '']);
  expect(heightOf(99, 10)).toBe(2);
});

test('older entries become sparser, and the newest stay', () => {
  const list = Array.from({ length: 11 }, (_, index) => index);
  expect(thinned(list, 11)).toEqual(list);
  expect(thinned(list, 10)).toEqual([0, 2, 4, 5, 6, 7, 8, 9, 10]);
});
