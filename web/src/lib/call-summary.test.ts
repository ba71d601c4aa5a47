import { expect, test } from 'vitest';
import { clickedIn, summaryOf } from './call-summary';

test('a call shows its target', () => {
  expect(summaryOf({ tool: 'shell', command: 'ls -l\npwd', timeout_s: 5 })).toBe('ls -l');
  expect(summaryOf({ path: 'a.py', content: 'x' })).toBe('a.py');
  expect(summaryOf({ from: 'a', to: 'b' })).toBe('a → b');
  expect(summaryOf({ patch: '--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-a\n+b\n' })).toBe('app.py');
});

test('an action on the desktop shows what it does to what', () => {
  expect(summaryOf({ action: 'click', x: 10, y: 20, button: null })).toBe('click x=10 y=20');
  expect(summaryOf({ action: 'type', text: 'hello\nthere' })).toBe('type text=hello');
});

test('an action in the browser shows the element that it is about', () => {
  const summary = (input: Record<string, unknown>) => summaryOf(input, 'browser');
  expect(summary({ action: 'open', url: 'http://localhost:8080/' })).toBe('open http://localhost:8080/');
  expect(summary({ action: 'click', text: 'Save all', ref: null })).toBe('click “Save all”');
  expect(summary({ action: 'click', ref: 'e12' })).toBe('click e12');
  expect(summary({ action: 'fill', selector: '#name', value: 'Ada', submit: true })).toBe('fill #name = Ada submit=true');
  expect(summary({ action: 'evaluate', expression: 'document.title' })).toBe('evaluate document.title');
  expect(summary({ action: 'read', format: 'outline' })).toBe('read format=outline');
});

test('the result of a click names the element', () => {
  expect(clickedIn({ clicked: 'Save' }, '')).toBe('Save');
  expect(clickedIn({}, '{\n  "clicked": "Save"\n}')).toBe('Save');
  for (const said of ['done', '{no json', '{"clicked": 3}', undefined]) expect(clickedIn({}, said)).toBe('');
});

test('a call of an MCP server shows all of its arguments', () => {
  expect(summaryOf({ query: 'bugs', name: 'caisson', draft: true }, 'hub__search')).toBe('query=bugs name=caisson draft=true');
});

test('a call without a known target shows its arguments', () => {
  expect(summaryOf({ repository: 'caisson', labels: ['bug'], draft: false })).toBe('repository=caisson labels=["bug"]');
  expect(summaryOf({})).toBe('');
  expect(summaryOf(null)).toBe('');
});
