import { expect, test, vi } from 'vitest';
import { unsaved } from './unsaved';

test('what is not saved is kept by job and path, and the browser asks while there is something', () => {
  const listeners = new Set<string>();
  vi.stubGlobal('addEventListener', (name: string) => listeners.add(name));
  vi.stubGlobal('removeEventListener', (name: string) => listeners.delete(name));
  const draft = (edited: string) => ({ read: { text: 'old', ending: '\n' as const }, edited });
  unsaved.set('one', 'constructor', draft('a'));
  unsaved.set('one', 'b.txt', draft('b'));
  unsaved.set('two', 'b.txt', draft('c'));
  expect(unsaved.paths('one')).toEqual(['constructor', 'b.txt']);
  expect(unsaved.of('two', 'b.txt')?.edited).toBe('c');
  expect(unsaved.of('two', 'constructor')).toBeUndefined();
  expect(listeners.has('beforeunload')).toBe(true);
  unsaved.set('one', 'constructor', null);
  unsaved.set('one', 'b.txt', null);
  expect(listeners.has('beforeunload')).toBe(true);
  unsaved.set('two', 'b.txt', null);
  expect(listeners.has('beforeunload')).toBe(false);
  expect(unsaved.paths('one')).toEqual([]);
  vi.unstubAllGlobals();
});
