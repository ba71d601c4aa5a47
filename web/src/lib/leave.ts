// The way out of what takes every key for itself: a terminal, a desktop that is used, an editor.

/** F6 inside of a pane leads to its head, before the pane itself hears of the key. */
export function leavePane(event: KeyboardEvent): void {
  if (event.key !== 'F6' || event.ctrlKey || event.altKey || event.metaKey) return;
  const pane = (event.target as HTMLElement).closest?.('.pane');
  const head = pane?.querySelector<HTMLElement>('.panehead button, .panehead a');
  if (!head) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  head.focus();
}
