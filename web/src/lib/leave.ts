// Leaving widgets that handle every key themselves: a terminal, a desktop, an editor.

/** F6 inside a pane moves the focus to the pane's header, before the pane itself handles the key. */
export function leavePane(event: KeyboardEvent): void {
  if (event.key !== 'F6' || event.ctrlKey || event.altKey || event.metaKey) return;
  const pane = (event.target as HTMLElement).closest?.('.pane');
  const head = pane?.querySelector<HTMLElement>('.panehead button, .panehead a');
  if (!head) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  head.focus();
}
