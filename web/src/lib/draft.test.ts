import { beforeEach, expect, test, vi } from 'vitest';
import { draft } from './draft.svelte';

let store: Map<string, string>;
beforeEach(() => {
  store = new Map();
  vi.stubGlobal('sessionStorage', { getItem: (name: string) => store.get(name) ?? null, setItem: (name: string, value: string) => store.set(name, value), removeItem: (name: string) => store.delete(name) });
  draft.forget();
});

const begun = { task: 'paint it', steps: '[]', options: { mcp: { token: 'secret' } }, git: 'https://user:secret@example.org/x', revision: '', files: [] };

test('what was begun is there again until it was started', () => {
  draft.keep(begun);
  expect(draft.begun()).toBe(begun);
  draft.forget();
  expect(draft.begun()).toEqual({});
});

test('the browser keeps the words alone', () => {
  draft.keep(begun);
  expect([...store.values()].join()).toContain('paint it');
  expect([...store.values()].join()).not.toContain('secret');
});

test('what the browser has kept may be anything', () => {
  for (const value of ['', 'no json', 'null', '[]', '{"task": 7}']) {
    store.set('begun-job', value);
    expect(draft.begun()).toEqual({});
  }
});
