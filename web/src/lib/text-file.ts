// A file as text that can be edited and written back without any byte changing that nobody touched.

export interface TextFile {
  /** As it is edited: lines end with one sign. */
  text: string;
  /** How its lines end, where all end alike; else the other signs are part of the text. */
  ending: '\n' | '\r\n';
}

/** Nothing where the bytes are no UTF-8 text: what cannot be read cannot be written back. */
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

/** What is written to the disk. */
export function encodeText(file: TextFile): string {
  return file.ending === '\n' ? file.text : file.text.replaceAll('\n', file.ending);
}
