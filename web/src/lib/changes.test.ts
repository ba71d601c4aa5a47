import { expect, test } from 'vitest';
import { empty, fold, type LogEvent } from './fold';

function changesOf(events: Partial<LogEvent>[]) {
  const job = empty();
  events.forEach((event, index) => fold(job, { sequence: index + 1, time_ms: index, kind: '', ...event } as LogEvent));
  return Object.fromEntries(job.changes);
}
function ran(tool: string, input: object, status = 'succeeded'): Partial<LogEvent>[] {
  const call = { id: `step-${JSON.stringify(input)}`, attempt: 1 };
  return [{ kind: 'call_started', call, data: { tool, input } }, { kind: 'call_ended', call, data: { status } }];
}
const scanned = (files: object[], rest: object = {}): Partial<LogEvent> => ({ kind: 'files_changed', data: { files, ...rest } });

test('files that tools and commands wrote are new, and a failed call changes nothing', () => {
  expect(changesOf([
    ...ran('write_file', { path: 'a.py', content: 'x' }), ...ran('write_file', { path: 'never.py', content: 'x' }, 'failed'),
    scanned([{ path: 'a.py', size: 1 }, { path: 'made.txt', size: 3 }, { path: '.caisson/agent.ipynb', size: 9 }], { whole: true }),
  ])).toEqual({ 'a.py': 'added', 'made.txt': 'added' });
});

test('files of a repository are not changes until something writes them', () => {
  expect(changesOf([
    { kind: 'job_created', data: { spec: { git: { url: 'u' } } } },
    scanned([{ path: 'README.md', size: 5 }, { path: 'old.txt', size: 2 }, { path: 'kept.txt', size: 2 }], { whole: true }),
    ...ran('edit_file', { path: 'README.md', old: 'a', new: 'b' }),
    scanned([{ path: 'new.txt', size: 1 }, { path: 'old.txt', removed: true }]),
  ])).toEqual({ 'README.md': 'changed', 'new.txt': 'added', 'old.txt': 'removed' });
});

test('an uploaded file is a change only once the job has changed it', () => {
  const uploaded = (path: string) => ({ kind: 'user_action', data: { what: 'file_put', path, bytes: 4 } });
  expect(changesOf([
    uploaded('same.txt'), uploaded('other.txt'),
    scanned([{ path: 'same.txt', size: 4, content: 'same' }, { path: 'other.txt', size: 6, content: 'longer' }], { whole: true }),
  ])).toEqual({ 'other.txt': 'changed' });
});

test('a file that was made and removed again is no change', () => {
  expect(changesOf([
    ...ran('write_file', { path: 'tmp/a', content: '' }), ...ran('write_file', { path: 'b', content: '' }),
    ...ran('move_file', { from: 'b', to: 'c' }), ...ran('delete_file', { path: 'tmp', recursive: true }),
  ])).toEqual({ c: 'added' });
});

test('a scan of a new sandbox lists what is there, not what was changed', () => {
  const there = [{ path: 'a', size: 1, content: 'x' }];
  expect(changesOf([
    scanned([...there, { path: 'gone', size: 1, content: 'y' }], { whole: true }), scanned(there, { whole: true, seen_after: 9 }),
  ])).toEqual({ a: 'added' });
});
