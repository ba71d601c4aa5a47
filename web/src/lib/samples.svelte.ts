// Resource usage of a sandbox over time: what the server has recorded, and what is measured while somebody looks.

import { api, type Schemas } from './api';
import { thinned } from './chart';

export interface Sample {
  /** Milliseconds since 1970, by the browser's clock. */
  time: number;
  cpu: number;
  memory: number;
  disk: number;
  processes: number;
}

/** The most samples that are kept; older ones become sparser. */
const MOST = 1500;
/** After a longer time without a measurement, what the server has recorded since is loaded. */
const GAP_MS = 15_000;

export class Samples {
  readonly id: string;
  list = $state.raw<Sample[]>([]);
  total = $state(0);
  peak = $state(0);
  problem = $state('');
  /** Whether the server's recording was loaded. */
  isLoaded = $state(false);
  #before: { time: number; micros: number } | null = null;
  /** When usage was last measured. */
  #measured = 0;
  #isOver = false;

  constructor(id: string) {
    this.id = id;
  }

  /** Measures until the returned function is called. */
  watch(every: number): () => void {
    const look = () => document.visibilityState === 'visible' && void this.measure();
    look();
    const timer = setInterval(look, every);
    return () => clearInterval(timer);
  }

  /** Loads the recording of a finished job. */
  async load(): Promise<void> {
    this.#isOver = true;
    try {
      this.#takeHistory(await api.statsHistory(this.id));
      this.problem = '';
    } catch (error) {
      this.problem = (error as Error).message;
    }
  }

  async measure(): Promise<void> {
    try {
      if (Date.now() - this.#measured > GAP_MS) {
        // Not asked for again while it is on its way.
        this.#measured = Date.now();
        const history = await api.statsHistory(this.id).catch((error: unknown) => {
          this.#measured = 0;
          throw error;
        });
        this.#takeHistory(history);
      }
      this.#take(await api.stats(this.id));
      this.problem = '';
    } catch (error) {
      // The last measurement may fail because the job has just ended.
      if (!this.#isOver) this.problem = `${(error as Error).message} The charts show earlier values.`;
    }
  }

  #takeHistory(history: Schemas['StatsHistory']): void {
    const ahead = Date.now() - history.now_ms;
    const recorded = history.samples.map((sample) => ({
      time: sample.time_ms + ahead, cpu: sample.cpus, memory: sample.memory_bytes, disk: sample.disk_bytes, processes: sample.processes,
    }));
    const newest = recorded.at(-1)?.time ?? 0;
    this.list = [...recorded, ...this.list.filter((sample) => sample.time > newest)];
    this.total = history.disk_total_bytes || this.total;
    this.peak = Math.max(this.peak, history.memory_peak_bytes);
    this.isLoaded = true;
    this.#before = null;
  }

  #take(stats: Schemas['SandboxStats']): void {
    const time = Date.now();
    const before = this.#before;
    this.#before = { time, micros: stats.cpu_micros };
    this.#measured = time;
    this.total = stats.disk_total_bytes;
    this.peak = Math.max(this.peak, stats.memory_peak_bytes);
    // CPU usage is known from the second sample on.
    if (!before || time <= before.time) return;
    const cpu = Math.max(0, (stats.cpu_micros - before.micros) / 1000 / (time - before.time));
    const sample = { time, cpu, memory: stats.memory_bytes, disk: this.total - stats.disk_free_bytes, processes: stats.processes };
    this.list = thinned([...this.list, sample], MOST);
  }
}

let kept: Samples | null = null;

/** The samples of this job; discards those of another job. */
export function samplesOf(id: string): Samples {
  if (kept?.id !== id) kept = new Samples(id);
  return kept;
}
