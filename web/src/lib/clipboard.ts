/** Copies a text. Returns whether that worked: without HTTPS there is no clipboard access, and `place` is selected instead. */
export async function copyText(text: string, place?: HTMLElement | null): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    if (place instanceof HTMLInputElement) {
      place.select();
      return false;
    }
    const range = document.createRange();
    if (place) range.selectNodeContents(place);
    getSelection()?.removeAllRanges();
    getSelection()?.addRange(range);
    return false;
  }
}
