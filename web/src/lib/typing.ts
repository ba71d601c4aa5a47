// When a field disappears while a user types into it, the next characters are not meant as shortcuts.

/** The longest pause between two characters of the same text. */
const FLOW_MS = 1500;

export class Typing {
  #last = -Infinity;

  /** Call when a character was typed into a field. */
  wrote(now: number): void {
    this.#last = now;
  }

  /** Call when the user has left the field deliberately. */
  left(): void {
    this.#last = -Infinity;
  }

  /** Whether a character typed outside of all fields continues the text; if so, the next one may continue it, too. */
  goesOn(now: number): boolean {
    if (now - this.#last > FLOW_MS) return false;
    this.#last = now;
    return true;
  }
}
