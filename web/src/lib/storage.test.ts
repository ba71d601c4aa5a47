import { afterEach, expect, test, vi } from 'vitest';
import { keep, kept } from './storage';

afterEach(() => vi.unstubAllGlobals());

test('a browser that keeps nothing does not stop the page', () => {
  Object.defineProperty(globalThis, 'localStorage', { configurable: true, get: () => { throw new DOMException('denied', 'SecurityError'); } });
  expect(kept('theme')).toBeNull();
  expect(() => keep('theme', 'dark')).not.toThrow();
  expect(() => keep('theme', null)).not.toThrow();
});

test('what is kept is found again until it is forgotten', () => {
  const inside = new Map<string, string>();
  const storage = { getItem: (name: string) => inside.get(name) ?? null, setItem: (name: string, value: string) => inside.set(name, value), removeItem: (name: string) => inside.delete(name) };
  vi.stubGlobal('sessionStorage', storage);
  keep('a', 'b', 'sessionStorage');
  expect(kept('a', 'sessionStorage')).toBe('b');
  keep('a', null, 'sessionStorage');
  expect(kept('a', 'sessionStorage')).toBeNull();
});
