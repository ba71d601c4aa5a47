import { expect, test } from 'vitest';
import { decodeText, encodeText } from './text-file';

const bytes = (text: string) => new TextEncoder().encode(text);

test('a text that nobody touched is written back as it was', () => {
  for (const text of ['', 'a', 'a\nb\n', 'a\r\nb\r\n', 'a\r\nb\n', 'a\rb', '\uFEFFa\r\nb', 'a\n\r\n', '\r\n', 'ä€😀\n']) {
    const file = decodeText(bytes(text));
    expect(file && encodeText(file)).toBe(text);
  }
});

test('lines of a file of Windows are edited as others and end as before', () => {
  const file = decodeText(bytes('one\r\ntwo\r\n'));
  expect(file).toEqual({ text: 'one\ntwo\n', ending: '\r\n' });
  expect(encodeText({ ...file!, text: 'one\nmore\ntwo\n' })).toBe('one\r\nmore\r\ntwo\r\n');
});

test('what is no UTF-8 is no text', () => {
  expect(decodeText(Uint8Array.of(0x63, 0x61, 0x66, 0xe9, 0x0a))).toBeNull();
  expect(decodeText(bytes('a\0b'))).toBeNull();
});
