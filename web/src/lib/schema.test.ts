import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { SchemaChecker } from './schema';

const checker = new SchemaChecker(JSON.parse(readFileSync('../docs/openapi.json', 'utf8')));
const texts = (value: unknown) => checker.check('Step', value).map((fault) => `${fault.path} ${fault.text}`.trim());

test('a good step has no fault', () => {
  expect(texts({ tool: 'shell', command: 'ls', name: 'look', timeout_s: 3, expect: { exit_code: 1 } })).toEqual([]);
});

test('a step whose fields come from several schemas has no fault', () => {
  expect(texts({ tool: 'gui', script: 'mousemove 10 10 click 1' })).toEqual([]);
  expect(texts({ tool: 'gui', action: 'screenshot', name: 'look' })).toEqual([]);
  expect(texts({ tool: 'browser', action: 'open', url: 'http://localhost:5173' })).toEqual([]);
});

test('what is wrong is named', () => {
  expect(texts({ tool: 'fly' })[0]).toMatch(/must be one of .*shell/);
  expect(texts({ tool: 'shell' })[0]).toMatch(/`command` is missing/);
  expect(texts({ tool: 'shell', command: 7 })[0]).toMatch(/command must be string/);
  expect(texts({ tool: 'shell', command: 'ls', colour: 'red' })[0]).toMatch(/`colour` is not known/);
  expect(texts('ls')[0]).toMatch(/must be an object/);
});

test('every tool of the API is known', () => {
  const names = checker.tools().map((tool) => tool.name);
  expect(names).toEqual(expect.arrayContaining(['shell', 'gui', 'browser']));
  expect(new Set(names).size).toBe(names.length);
  expect(names).not.toContain('');
});
