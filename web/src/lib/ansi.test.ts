import { expect, test } from 'vitest';
import { ansi } from './ansi';

test('colours become classes and other sequences vanish', () => {
  expect(ansi('\x1b[1;31mred\x1b[0m plain\x1b[2K')).toEqual([
    { text: 'red', class: 'a-bold a-fg-red' },
    { text: ' plain', class: '' },
  ]);
});

test('a progress bar leaves its last state', () => {
  expect(ansi('10%\r50%\r100%\ndone')).toEqual([{ text: '100%\ndone', class: '' }]);
});

test('what looks like HTML stays text', () => {
  expect(ansi('<script>alert(1)</script>')).toEqual([{ text: '<script>alert(1)</script>', class: '' }]);
});

test('a return at the end has overwritten nothing yet', () => {
  expect(ansi('10%\r50%\r')).toEqual([{ text: '50%', class: '' }]);
  expect(ansi('one\r\ntwo\r\n')).toEqual([{ text: 'one\ntwo\n', class: '' }]);
});

test('what was begun is ended', () => {
  const pieces = ansi('\x1b[1;3;4;7;9mall\x1b[23;24mless\x1b[22;27;29mnone');
  expect(pieces.map((piece) => piece.class)).toEqual(['a-bold a-italic a-underline a-inverse a-struck', 'a-bold a-inverse a-struck', '']);
});

test('backgrounds have their classes', () => {
  expect(ansi('\x1b[41;97mx\x1b[49my\x1b[102mz\x1b[mw').map((piece) => piece.class)).toEqual(['a-fg-white a-bg-red', 'a-fg-white', 'a-fg-white a-bg-green', '']);
});

test('256 colours and true ones are colours of their own', () => {
  expect(ansi('\x1b[38;5;10mx\x1b[39my')).toEqual([{ text: 'x', class: 'a-fg-green' }, { text: 'y', class: '' }]);
  expect(ansi('\x1b[38;5;208;1mx')).toEqual([{ text: 'x', class: 'a-bold', style: 'color: rgb(255 135 0)' }]);
  expect(ansi('\x1b[48;5;244mx')).toEqual([{ text: 'x', class: '', style: 'background-color: rgb(128 128 128)' }]);
  expect(ansi('\x1b[38;2;1;2;3;48;2;4;5;999mx')).toEqual([{ text: 'x', class: '', style: 'color: rgb(1 2 3); background-color: rgb(4 5 255)' }]);
  expect(ansi('\x1b[38:2::9:8:7mx\x1b[38:5:1my')).toEqual([{ text: 'x', class: '', style: 'color: rgb(9 8 7)' }, { text: 'y', class: 'a-fg-red' }]);
});
