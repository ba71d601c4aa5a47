// A text file that can be edited and written back without changing any byte that the user did not touch.

export interface TextFile {
  /** The text for the editor, with line feeds as line breaks. */
  text: string;
  /** The line ending if all lines have the same; otherwise other line endings remain part of the text. */
  ending: '\n' | '\r\n';
}

/** `null` if the bytes are not UTF-8: what cannot be decoded cannot be written back. */
export function decodeText(content: ArrayBuffer | Uint8Array): TextFile | null {
  let raw: string;
  try {
    raw = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(content);
  } catch {
    return null;
  }
  if (raw.includes('\0')) return null;
  const isWindows = raw.includes('\r\n') && !/\r(?!\n)|(?<!\r)\n/.test(raw);
  return isWindows ? { text: raw.replaceAll('\r\n', '\n'), ending: '\r\n' } : { text: raw, ending: '\n' };
}

/** The text as written to disk. */
export function encodeText(file: TextFile): string {
  return file.ending === '\n' ? file.text : file.text.replaceAll('\n', file.ending);
}
