import { expect, test } from 'vitest';

import { purposeOf } from './downloads';

test('a download says what it is for', () => {
  expect(purposeOf('manifest.json')).toBe('files of the zip with digests');
  expect(purposeOf('agent-deno.ipynb')).toBe('notebook with the cells that ran');
  expect(purposeOf('desktop-2.apng')).toBe('recording of the desktop');
  expect(purposeOf('of-a-later-version.txt')).toBe('');
});
