// Resource usage of a sandbox over the last minutes: polled while visible, kept while the job's page is open.

import { api } from './api';

export interface Sample {
  cpu: number;
  memory: number;
  disk: number;
  processes: number;
}

/** The number of samples kept, and the polling interval. */
export const SAMPLES = 120;
const EVERY_MS = 1000;

export class Samples {
  readonly id: string;
  list = $state.raw<Sample[]>([]);
  total = $state(0);
  peak = $state(0);
  problem = $state('');
  #before: { time: number; micros: number } | null = null;

  constructor(id: string) {
    this.id = id;
  }

  /** Polls until the returned function is called. */
  watch(): () => void {
    const look = () => document.visibilityState === 'visible' && void this.#ask();
    look();
    const timer = setInterval(look, EVERY_MS);
    return () => { clearInterval(timer); this.#before = null; };
  }

  async #ask(): Promise<void> {
    try {
      const stats = await api.stats(this.id);
      const now = performance.now();
      const before = this.#before;
      this.#before = { time: now, micros: stats.cpu_micros };
      this.total = stats.disk_total_bytes;
      this.peak = stats.memory_peak_bytes;
      this.problem = '';
      // CPU usage is known from the second sample on.
      if (!before || now <= before.time) return;
      const cpu = Math.max(0, (stats.cpu_micros - before.micros) / 1000 / (now - before.time));
      const sample = { cpu, memory: stats.memory_bytes, disk: this.total - stats.disk_free_bytes, processes: stats.processes };
      this.list = [...this.list.slice(1 - SAMPLES), sample];
    } catch (error) {
      this.problem = `${(error as Error).message} What you see is old.`;
    }
  }
}

let kept: Samples | null = null;

/** The samples of this job; discards those of another job. */
export function samplesOf(id: string): Samples {
  if (kept?.id !== id) kept = new Samples(id);
  return kept;
}
