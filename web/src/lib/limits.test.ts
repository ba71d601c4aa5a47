import { expect, test } from 'vitest';
import { empty, fold, type LogEvent } from './fold';
import { isEndNear, limitsOf, timeLeft } from './limits';

function play(states: [number, string][]) {
  const job = empty();
  const created = { sequence: 1, time_ms: 0, kind: 'job_created', data: { spec: { wall_clock: { secs: 100, nanos: 0 } } } };
  const changes = states.map(([time_ms, state], index) => ({ sequence: index + 2, time_ms, kind: 'state_changed', data: { state } }));
  for (const event of [created, ...changes]) fold(job, event as LogEvent);
  return job.clock;
}

test('the time limit counts from the start, and waiting does not count', () => {
  const running = play([[10_000, 'starting'], [12_000, 'running'], [30_000, 'paused'], [70_000, 'running']]);
  expect(timeLeft(running, 80_000)).toBe(70_000);
  const paused = play([[10_000, 'starting'], [12_000, 'running'], [30_000, 'paused']]);
  expect([timeLeft(paused, 40_000), timeLeft(paused, 900_000)]).toEqual([80_000, 80_000]);
  expect(timeLeft(running, 900_000)).toBe(0);
});

test('an extension moves the end, also of a job that waits', () => {
  const job = empty();
  const events = [
    { kind: 'job_created', data: { spec: { wall_clock: { secs: 100, nanos: 0 } } } },
    { kind: 'state_changed', data: { state: 'starting' } },
    { kind: 'time_limit_changed', actor: { name: 'ada', key: 'k' }, data: { before_ms: 100_000, after_ms: 5_400_000 } },
    { kind: 'state_changed', data: { state: 'paused' } },
  ];
  events.forEach((event, index) => fold(job, { sequence: index + 1, time_ms: index * 10_000, ...event } as LogEvent));
  expect(timeLeft(job.clock, 900_000)).toBe(5_400_000 - 20_000);
  expect(job.items.map((item) => 'text' in item && item.text)).toContain('ada extended the time limit to 1 h 30 min');
});

test('a job that has not started has no countdown', () => {
  expect(timeLeft(play([[5, 'queued']]), 10)).toBeNull();
  expect(timeLeft(empty().clock, 10)).toBeNull();
});

test('the end is near in the last tenth of a short limit and the last ten minutes of a long one', () => {
  expect([isEndNear(9_000, 100_000), isEndNear(11_000, 100_000)]).toEqual([true, false]);
  expect([isEndNear(599_000, 86_400_000), isEndNear(601_000, 86_400_000)]).toEqual([true, false]);
});

test('limits are read whether they are defaults or required', () => {
  const limits = { cpu_millis: { default: 2000 }, memory_mib: { required: 512 }, disk_mib: { default: 1 }, pids: { default: 1024 } };
  expect(limitsOf(limits)).toEqual({ cpus: 2, memory: 512 * 1024 * 1024, disk: 1024 * 1024, processes: 1024 });
  expect(limitsOf(undefined)).toEqual({ cpus: 0, memory: 0, disk: 0, processes: 0 });
});
