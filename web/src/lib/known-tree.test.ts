import { expect, test } from 'vitest';
import { treeOf } from './known-tree';

const file = (size: number) => ({ content: 'x'.repeat(size), size, at: 1 });

test('folders come first and hold what is in them', () => {
  const tree = treeOf(new Map([['b.txt', file(1)], ['src/a/main.rs', file(2)], ['src/lib.rs', file(0)]]));
  expect(tree.get('')?.map((item) => item.path)).toEqual(['src', 'b.txt']);
  expect(tree.get('src')?.map((item) => [item.path, item.kind])).toEqual([['src/a', 'directory'], ['src/lib.rs', 'file']]);
  expect(tree.get('src/a')?.[0]?.size).toBe(2);
});

test('no file is an empty folder', () => {
  expect([...treeOf(new Map())]).toEqual([['', []]]);
});

test('a folder may be called as what every object has', () => {
  for (const name of ['constructor', 'hasOwnProperty', '__proto__', 'toString']) {
    const tree = treeOf(new Map([[`${name}/x`, file(1)]]));
    expect(tree.get('')?.map((item) => item.path)).toEqual([name]);
    expect(tree.get(name)?.map((item) => item.path)).toEqual([`${name}/x`]);
    expect(treeOf(new Map()).get(name)).toBeUndefined();
  }
});
