// Values stored in the browser. If the user has disabled storage, they are silently not kept.

type Place = 'localStorage' | 'sessionStorage';

export function kept(name: string, place: Place = 'localStorage'): string | null {
  try {
    return globalThis[place].getItem(name);
  } catch {
    return null;
  }
}

/** Stores a value; `null` removes it. */
export function keep(name: string, value: string | null, place: Place = 'localStorage'): void {
  try {
    if (value === null) globalThis[place].removeItem(name);
    else globalThis[place].setItem(name, value);
  } catch {
    // The page works without storage.
  }
}
