// Delays buttons that have just appeared or moved, because a click may be meant for what was there a moment ago.

/** How long an element must stay in place before it can be pressed. */
export const STILL_MS = 700;

/** Whether the elements with these names are in place. Call while creating a component; existing ones are in place. */
export function settled(names: () => string): { readonly is: boolean } {
  // Derived, so that only a change of the names restarts the timer.
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
