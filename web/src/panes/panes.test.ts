import { expect, test } from 'vitest';
import { empty, type Folded } from '../lib/fold';
import { panesOf } from './panes';

const names = (view: Partial<Folded>, over = false, isTask = true, mayWork = true) => panesOf({ ...empty(), last: 1, ...view }, over, isTask, mayWork).map((pane) => pane.name);

test('a job without a sandbox has no panes, and a draft has its files', () => {
  expect(names({ state: 'paused', code: 'no_model' })).toEqual([]);
  expect(names({ state: 'queued' })).toEqual([]);
  expect(names({ state: 'failed' }, true)).toEqual([]);
  expect(names({ state: 'draft' })).toEqual(['files']);
});

test('a job with a sandbox has all panes, or those that a viewer and a job of steps can use', () => {
  const view = { state: 'running', hasSandbox: true };
  expect(names(view)).toEqual(['desktop', 'terminal', 'files', 'notebook', 'preview', 'network', 'resources', 'context']);
  expect(names(view, false, false, false)).toEqual(['desktop', 'files', 'network', 'resources']);
});

test('a finished job has the panes that still show something', () => {
  const picture = { sequence: 1, time: 1, rich: { type: 'image/png' }, isScreen: true };
  expect(names({ state: 'complete', hasSandbox: true, screenshots: [{ ...picture, isScreen: false }] }, true)).not.toContain('desktop');
  expect(names({ state: 'complete', hasSandbox: true }, true)).toEqual(['files', 'network', 'resources', 'context']);
  expect(names({ state: 'complete', hasSandbox: true, screenshots: [picture] }, true)[0]).toBe('desktop');
});
