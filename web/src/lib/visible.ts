// Shows invisible and direction-changing characters by name, so that users see what they approve.

export interface Piece {
  text: string;
  /** Whether the piece is the name of an invisible character. */
  isSign: boolean;
}

/** Control characters except tab and line feed, direction marks, zero-width characters, fillers, tags. */
const UNSEEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]|\r(?!\n|$)|(?<!\p{Extended_Pictographic}\ufe0f?)\u200d/gu;

/** The name of a character, such as `U+202E`. */
const named = (sign: string) => `U+${(sign.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, '0')}`;

/** Splits a text into visible parts and names of invisible characters. */
export function visible(text: string): Piece[] {
  const found: Piece[] = [];
  let from = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (match.index > from) found.push({ text: text.slice(from, match.index), isSign: false });
    found.push({ text: named(match[0]), isSign: true });
    from = match.index + match[0].length;
  }
  if (from < text.length) found.push({ text: text.slice(from), isSign: false });
  return found;
}

/** The same as plain text, for places such as a title. */
export function visibleText(text: string): string {
  return visible(text).map((piece) => (piece.isSign ? `[${piece.text}]` : piece.text)).join('');
}
