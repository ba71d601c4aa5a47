// What the browser keeps for this page. One that keeps nothing, because its person said so, forgets this too.

type Place = 'localStorage' | 'sessionStorage';

export function kept(name: string, place: Place = 'localStorage'): string | null {
  try {
    return globalThis[place].getItem(name);
  } catch {
    return null;
  }
}

/** Nothing as a value forgets it. */
export function keep(name: string, value: string | null, place: Place = 'localStorage'): void {
  try {
    if (value === null) globalThis[place].removeItem(name);
    else globalThis[place].setItem(name, value);
  } catch {
    // The page works without.
  }
}
