import { expect, test } from 'vitest';
import { editedText, givenCode, otherInput } from './given';

test('an edit is a change, not code', () => {
  expect(editedText('edit_file', { path: 'a.py', old: 'x', new: 'y' })).toEqual({ path: 'a.py', before: 'x', after: 'y' });
  expect(editedText('write_file', { path: 'a.py', content: 'x' })).toBeNull();
});

test('code has the language of its tool or its path', () => {
  expect(givenCode('python', { code: 'a\nb' })?.path).toBe('x.py');
  expect(givenCode('write_file', { path: 'a.rs', content: 'fn' })).toEqual({ path: 'a.rs', text: 'fn' });
  expect(givenCode('shell', { command: 'ls' })).toBeNull();
});

test('what is shown elsewhere is not repeated', () => {
  expect(otherInput('shell', { command: 'ls', wait_s: 3, nothing: null })).toEqual([['wait_s', '3']]);
  expect(otherInput('write_file', { path: 'a', content: 'b', mode: '755' })).toEqual([['mode', '755']]);
});
