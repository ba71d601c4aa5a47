// What a sandbox used over the last minutes: asked for while somebody looks, kept while the page of the job is open.

import { api } from './api';

export interface Sample {
  cpu: number;
  memory: number;
  disk: number;
  processes: number;
}

/** How many are kept, and how often is looked. */
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

  /** Looks until the returned function is called. */
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
      // How much of a processor was used is known from the second look on.
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

/** Those of this job; those of another one are forgotten. */
export function samplesOf(id: string): Samples {
  if (kept?.id !== id) kept = new Samples(id);
  return kept;
}
