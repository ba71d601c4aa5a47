// The limits of a job and of its sandbox, and how much time is left.

import type { Folded, SandboxLimits, WorkTime } from './folded';

const MIB = 1024 * 1024;

/** A limit of the job spec: `{"default": 4096}` or `{"required": 512}`. */
function valueOf(limit: any): number {
  const value = limit?.required ?? limit?.default ?? limit?.best_effort ?? limit;
  return typeof value === 'number' ? value : 0;
}

export function limitsOf(limits: any): SandboxLimits {
  return {
    cpus: valueOf(limits?.cpu_millis) / 1000, memory: valueOf(limits?.memory_mib) * MIB,
    disk: valueOf(limits?.disk_mib) * MIB, processes: valueOf(limits?.pids),
  };
}

/** A duration of the job spec, such as `{"secs": 60, "nanos": 0}`. */
export function millisecondsOf(time: any): number {
  return time && typeof time === 'object' ? (time.secs ?? 0) * 1000 + (time.nanos ?? 0) / 1e6 : 0;
}

/** Counts the time that the job waits, by the server's rules. Call after a change of state. */
export function countTime(job: Folded, time: number): void {
  const clock = job.clock;
  if (clock.waitingSince !== null) {
    clock.waited += Math.max(0, time - clock.waitingSince);
    clock.waitingSince = null;
  }
  if (job.state === 'starting') clock.startedAt ??= time;
  if ((job.state === 'paused' || job.state === 'queued') && clock.startedAt !== null) clock.waitingSince = time;
}

/** The time until the server ends the job; `null` if it has not started or its limit is unknown. */
export function timeLeft(clock: WorkTime, now: number): number | null {
  if (clock.limit === 0 || clock.startedAt === null) return null;
  const used = (clock.waitingSince ?? now) - clock.startedAt - clock.waited;
  return Math.max(0, clock.limit - Math.max(0, used));
}

/** Whether the end is near: the last ten minutes, or the last tenth of a shorter limit. */
export function isEndNear(left: number, limit: number): boolean {
  return left < Math.min(600_000, limit / 10);
}
