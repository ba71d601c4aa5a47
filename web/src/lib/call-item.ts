// A call as the page shows it: its status, its output, and its images and other rich content.

export type ItemStatus = 'running' | 'succeeded' | 'failed' | 'interrupted';

export interface Rich {
  /** The MIME type, such as `image/png`. */
  type: string;
  /** Text, or the base64 of an image. */
  data?: string;
  /** The digest under which large content is stored. */
  digest?: string;
  /** The display id, by which a later version replaces this one. */
  shownAs?: string;
}

export interface CallItem {
  kind: 'call';
  key: string;
  sequence: number;
  time: number;
  tool: string;
  input: any;
  step: number | null;
  attempt: number;
  status: ItemStatus;
  exitCode: number | null;
  reason: string;
  note: string;
  /** What a click has hit, as far as the result says. */
  target: string;
  /** The tool's own message, such as `edited index.html`. */
  said: string;
  duration: number | null;
  output: { stream: string; text: string }[];
  outputBytes: number;
  hiddenBytes: number;
  /** The number of characters in `output`. */
  keptLength: number;
  rich: Rich[];
  /** The user who ran it; empty for the job's own calls. */
  by: string;
}

/** The most output of one call that is kept for display; the log has the rest. */
const MOST_OUTPUT = 256 * 1024;
/** The maximum number of parts; each part is output of one stream. */
const MOST_PARTS = 2000;

export function addOutput(call: CallItem, stream: string, text: string): Partial<CallItem> {
  let output = call.output.slice();
  const last = output.at(-1);
  if (last?.stream === stream) output[output.length - 1] = { stream, text: last.text + text };
  else output.push({ stream, text });
  let hiddenBytes = call.hiddenBytes;
  let keptLength = call.keptLength + text.length;
  // A process that alternates between its two streams can create a part per character.
  if (output.length > MOST_PARTS) {
    const gone = output.slice(0, MOST_PARTS / 4).reduce((sum, part) => sum + part.text.length, 0);
    output = output.slice(MOST_PARTS / 4);
    hiddenBytes += gone;
    keptLength -= gone;
  }
  let excess = keptLength - MOST_OUTPUT;
  while (excess > 0 && output[0]) {
    const first = output[0];
    const cut = Math.min(excess, first.text.length);
    hiddenBytes += cut;
    excess -= cut;
    keptLength -= cut;
    if (cut === first.text.length) output.shift();
    else output[0] = { stream: first.stream, text: first.text.slice(cut) };
  }
  return { output, hiddenBytes, keptLength, outputBytes: call.outputBytes + text.length };
}

/** Representations of the same content, best first. */
const FORMS = ['image/png', 'image/jpeg', 'image/gif', 'image/svg+xml', 'text/html', 'text/markdown', 'application/json', 'text/plain'];

export function best(forms: Record<string, unknown>, text: string): Rich[] {
  const type = FORMS.find((form) => forms[form] !== undefined);
  if (!type) return text ? [{ type: 'text/plain', data: text }] : [];
  const value = forms[type] as any;
  if (isDigest(value?.digest)) return [{ type, digest: value.digest }];
  return [{ type, data: typeof value === 'string' ? value : JSON.stringify(value, null, 2) }];
}

/** The job's data is untrusted: only a digest may become part of a URL. */
function isDigest(value: unknown): value is string {
  return typeof value === 'string' && /^[0-9a-f]{64}$/.test(value);
}

export function richOf(data: any): Rich[] {
  if (!data || typeof data !== 'object') return [];
  const found: Rich[] = [];
  // The bytes themselves, or their size if they are stored elsewhere.
  for (const image of Array.isArray(data.images) ? data.images : []) {
    const isKept = isDigest(image?.digest);
    const isHere = typeof image?.bytes === 'string';
    if (isKept || isHere) found.push({ type: String(image.media_type), ...(isKept && { digest: image.digest }), ...(isHere && { data: image.bytes }) });
  }
  const screenshot = data.screenshot?.digest ?? data.screenshot;
  if (isDigest(screenshot)) found.push({ type: 'image/png', digest: screenshot });
  return found;
}

export function isSamePicture(known: Rich, picture: Rich): boolean {
  return known.data !== undefined && picture.data !== undefined ? known.data.trim() === picture.data.trim() : known.digest !== undefined && known.digest === picture.digest;
}

export function decode(base64: string): string {
  try {
    return new TextDecoder().decode(Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)));
  } catch {
    return '';
  }
}
