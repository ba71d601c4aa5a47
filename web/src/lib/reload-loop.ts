// Tells a page that reloads itself forever from one that is loaded now and then.

/** This many loads in this time are a loop. A page that waits for its server reloads every two seconds at most. */
const FAST_LOADS = 6;
const FAST_MS = 9000;
/** So are this many loads, each soon after the one before, on a slow machine. */
const MANY_LOADS = 20;
const SOON_MS = 10_000;

export class ReloadLoop {
  #times: number[] = [];

  /** Call after each load; returns whether the page is in a loop. */
  loaded(now: number): boolean {
    const before = this.#times.at(-1);
    this.#times = before !== undefined && now - before <= SOON_MS ? [...this.#times, now] : [now];
    const first = this.#times.at(-FAST_LOADS);
    return this.#times.length >= MANY_LOADS || (first !== undefined && now - first <= FAST_MS);
  }
}
