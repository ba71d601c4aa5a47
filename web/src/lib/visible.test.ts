import { expect, test } from 'vitest';
import { visible, visibleText } from './visible';

test('a text that can be seen is one piece as it is', () => {
  for (const text of ['rm -rf build\n\techo "grüße 你好"', 'ends in a line of another system\r\n', 'a line of one\r', '👩‍💻 and ❤️‍🔥']) {
    expect(visible(text)).toEqual([{ text, isSign: false }]);
  }
  expect(visible('')).toEqual([]);
});

test('signs that turn the order around or show nothing are named where they stand', () => {
  expect(visible('a\u202eb')).toEqual([{ text: 'a', isSign: false }, { text: 'U+202E', isSign: true }, { text: 'b', isSign: false }]);
  for (const sign of ['\0', '\u001b', '\u007f', '\u0085', '\u00ad', '\u061c', '\u200b', '\u200d', '\u200f', '\u2028', '\u2066', '\u3164', '\ufeff', '\u{e0041}']) {
    expect(visible(`x${sign}y`)[1]).toMatchObject({ isSign: true });
  }
});

test('a return that would write over what stands before is named', () => {
  expect(visibleText('echo hello\rrm -rf /')).toBe('echo hello[U+000D]rm -rf /');
});
