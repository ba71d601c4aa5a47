import { expect, test } from 'vitest';
import { partsOf } from './patch';

test('a patch is its files, and each line what becomes of it', () => {
  const patch = [
    'diff --git a/src/a.py b/src/a.py', '--- a/src/a.py', '+++ b/src/a.py', '@@ -1,2 +1,2 @@', ' import os', '-print(1)', '+print(2)',
    '--- /dev/null', '+++ b/new.txt', '@@ -0,0 +1 @@', '+--- not a name', '--- a/old.txt\t2024', '+++ /dev/null', '@@ -1 +0,0 @@', '-gone', '\\ No newline at end of file', '',
  ].join('\n');
  expect(partsOf(patch)).toEqual([
    { path: 'src/a.py', lines: [{ kind: 'gap', text: '@@ -1,2 +1,2 @@' }, { kind: 'same', text: 'import os' }, { kind: 'removed', text: 'print(1)' }, { kind: 'added', text: 'print(2)' }] },
    { path: 'new.txt', lines: [{ kind: 'gap', text: '@@ -0,0 +1 @@' }, { kind: 'added', text: '--- not a name' }] },
    { path: 'old.txt', lines: [{ kind: 'gap', text: '@@ -1 +0,0 @@' }, { kind: 'removed', text: 'gone' }] },
  ]);
});

test('what is no patch is none', () => {
  expect(partsOf('hello\n+world')).toBeNull();
});
