import { expect, test } from 'vitest';
import { changes, diff } from './diff';

function apply(before: string, after: string): void {
  const lines = diff(before, after);
  const side = (kind: string) => lines.filter((line) => line.kind === 'same' || line.kind === kind).map((line) => line.text);
  expect(side('removed').join('\n')).toBe(before);
  expect(side('added').join('\n')).toBe(after);
}

test('both sides can be read off a difference', () => {
  apply('a\nb\nc', 'a\nx\nc');
  apply('', 'a');
  apply('a\nb', 'b\na');
  apply('same', 'same');
  for (let round = 0; round < 200; round += 1) {
    const text = () => Array.from({ length: Math.floor(Math.random() * 12) }, () => 'abc'[Math.floor(Math.random() * 3)]).join('\n');
    apply(text(), text());
  }
});

test('a small change is a small difference', () => {
  const before = Array.from({ length: 500 }, (_, index) => `line ${index}`);
  const after = before.with(250, 'changed');
  expect(diff(before.join('\n'), after.join('\n')).filter((line) => line.kind !== 'same').length).toBe(2);
});

test('one line of two thousand is one removed and one added, with three lines around', () => {
  const line = (index: number) => `line ${index}: ${'long enough to be beyond any cut of the text '.repeat(2)}`;
  const before = Array.from({ length: 2000 }, (_, index) => line(index));
  const { lines, isCut } = changes(before.join('\n'), before.with(1700, 'changed').join('\n'), 2000);
  const of = (kind: string) => lines.filter((shown) => shown.kind === kind);
  expect([of('removed').length, of('added').length, of('same').length, isCut]).toEqual([1, 1, 6, false]);
  expect(of('gap').map((gap) => gap.text)).toEqual(['1697 equal lines', '296 equal lines']);
  expect(of('added')[0]).toMatchObject({ text: 'changed', right: 1700 });
});

test('texts that have nothing in common are shown whole, soon, and cut', () => {
  const text = (word: string) => Array.from({ length: 20_000 }, (_, index) => `${word} ${index}`).join('\n');
  const { lines, isCut } = changes(text('old'), text('new'), 500);
  expect([lines.length, isCut]).toEqual([500, true]);
});
