// Buttons that have just come, or just moved, are not what somebody meant who presses where another was a moment ago.

/** How long what has changed its place must stand still before it can be pressed. */
export const STILL_MS = 700;

/** Whether the things with these names stand still. To be made while a component is made; what is there then stands still. */
export function settled(names: () => string): { readonly is: boolean } {
  // Derived: whatever else happens meanwhile, only another name begins the time anew.
  const now = $derived(names());
  let still = $state(names());
  $effect(() => {
    const wanted = now;
    const timer = setTimeout(() => (still = wanted), STILL_MS);
    return () => clearTimeout(timer);
  });
  return {
    get is() {
      return still === now;
    },
  };
}
