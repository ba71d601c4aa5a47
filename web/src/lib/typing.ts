// Who writes into a field that goes away goes on writing for a moment: those letters are not meant as shortcuts.

/** How long after a letter the next one belongs to it. */
const FLOW_MS = 1500;

export class Typing {
  #last = -Infinity;

  /** A letter went into a field. */
  wrote(now: number): void {
    this.#last = now;
  }

  /** The person has gone elsewhere by own will. */
  left(): void {
    this.#last = -Infinity;
  }

  /** Whether a letter that fell beside every field belongs to what was being written; then the next one may too. */
  goesOn(now: number): boolean {
    if (now - this.#last > FLOW_MS) return false;
    this.#last = now;
    return true;
  }
}
