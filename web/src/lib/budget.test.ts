import { expect, test } from 'vitest';
import { doubled, inWords } from './budget';
import { empty } from './fold';

const spent = { ...empty().spent, turns: 2, input: 900, output: 90, dollars: 0.5, toolCalls: 1, worked: 5000 };

test('only what is used up is doubled', () => {
  expect(doubled({ turns: 2, tool_calls: 50, wall_s: 3600, money_usd: 10 }, spent, 0)).toEqual({ turns: 4 });
  expect(doubled({ turns: 2, money_usd: 0.5, tokens: null }, spent, 0)).toEqual({ turns: 4, money_usd: 1 });
  expect(doubled({ wall_s: 5, turns: 3 }, spent, 0)).toEqual({ wall_s: 10 });
});

test('where nothing is by the count of the page, the nearest is', () => {
  expect(doubled({ tokens: 1000, turns: 100 }, spent, 0)).toEqual({ tokens: 2000 });
  expect(doubled({}, spent, 0)).toEqual({});
});

test('it is said in words', () => {
  expect(inWords({ turns: 4, money_usd: 1, wall_s: 7200 })).toBe('turns: 4, money: $1.00, time: 2 h');
});
