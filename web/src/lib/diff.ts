// A line diff (Myers' greedy algorithm, bounded), and the part of it that is worth showing.

export interface DiffLine {
  kind: 'same' | 'added' | 'removed';
  text: string;
}

/** A displayed line: `left` and `right` are zero-based indexes in the old and new text. A gap replaces equal lines. */
export interface ShownLine {
  kind: DiffLine['kind'] | 'gap';
  text: string;
  left: number;
  right: number;
}

/** Texts that differ in more lines than this are shown as entirely removed and added. */
const MOST_EDITS = 1000;
const CONTEXT = 3;

export function diff(before: string, after: string): DiffLine[] {
  const a = before.split('\n');
  const b = after.split('\n');
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const same = (lines: string[]): DiffLine[] => lines.map((text) => ({ kind: 'same', text }));
  const middle = edits(a.slice(start, a.length - end), b.slice(start, b.length - end));
  return [...same(a.slice(0, start)), ...middle, ...same(a.slice(a.length - end))];
}

/** Changed lines with a few lines of context; at most `most` lines, and whether there are more. */
export function changes(before: string, after: string, most: number): { lines: ShownLine[]; isCut: boolean } {
  const all = diff(before, after);
  const isNear = new Uint8Array(all.length);
  all.forEach((line, index) => {
    if (line.kind !== 'same') isNear.fill(1, Math.max(0, index - CONTEXT), index + CONTEXT + 1);
  });
  const lines: ShownLine[] = [];
  let [left, right, skipped] = [0, 0, 0];
  const closeGap = () => {
    if (skipped > 0) lines.push({ kind: 'gap', text: `${skipped} equal ${skipped === 1 ? 'line' : 'lines'}`, left, right });
    skipped = 0;
  };
  for (const [index, line] of all.entries()) {
    if (isNear[index]) {
      closeGap();
      if (lines.length >= most) return { lines, isCut: true };
      lines.push({ ...line, left, right });
    } else skipped += 1;
    if (line.kind !== 'added') left += 1;
    if (line.kind !== 'removed') right += 1;
  }
  closeGap();
  return { lines, isCut: false };
}

/** Maps lines to numbers, so that comparing two lines is cheap however long they are. */
function numbered(...texts: string[][]): Int32Array[] {
  const numbers = new Map<string, number>();
  return texts.map((lines) => Int32Array.from(lines, (line) => {
    const known = numbers.get(line) ?? numbers.size;
    numbers.set(line, known);
    return known;
  }));
}

/** Whether the furthest path on diagonal `k` comes from above (a line was added). Diagonal `k` is at `middle + k`. */
function isDown(reach: Int32Array, middle: number, k: number, depth: number): boolean {
  return k === -depth || (k !== depth && (reach[middle + k - 1] ?? -1) < (reach[middle + k + 1] ?? -1));
}

function edits(a: string[], b: string[]): DiffLine[] {
  const [left = new Int32Array(), right = new Int32Array()] = numbered(a, b);
  const most = Math.min(a.length + b.length, MOST_EDITS);
  const middle = most + 1;
  const reach = new Int32Array(2 * most + 3).fill(-1);
  reach[middle + 1] = 0;
  // The reach before each round, limited to that round's diagonals.
  const trace: Int32Array[] = [];
  for (let depth = 0; depth <= most; depth += 1) {
    trace.push(reach.slice(middle - depth - 1, middle + depth + 2));
    for (let k = -depth; k <= depth; k += 2) {
      let x = isDown(reach, middle, k, depth) ? (reach[middle + k + 1] ?? 0) : (reach[middle + k - 1] ?? 0) + 1;
      while (x < left.length && x - k < right.length && left[x] === right[x - k]) x += 1;
      reach[middle + k] = x;
      if (x >= left.length && x - k >= right.length) return walk(trace, a, b);
    }
  }
  return [...a.map((text) => ({ kind: 'removed' as const, text })), ...b.map((text) => ({ kind: 'added' as const, text }))];
}

function walk(trace: Int32Array[], a: string[], b: string[]): DiffLine[] {
  const lines: DiffLine[] = [];
  let x = a.length;
  let y = b.length;
  for (let depth = trace.length - 1; depth >= 0; depth -= 1) {
    const reach = trace[depth] ?? new Int32Array();
    const middle = depth + 1;
    const k = x - y;
    const down = isDown(reach, middle, k, depth);
    const fromK = down ? k + 1 : k - 1;
    const fromX = reach[middle + fromK] ?? 0;
    const fromY = fromX - fromK;
    while (x > fromX && y > fromY) {
      x -= 1;
      y -= 1;
      lines.push({ kind: 'same', text: a[x] ?? '' });
    }
    if (depth > 0) {
      if (down) {
        y -= 1;
        lines.push({ kind: 'added', text: b[y] ?? '' });
      } else {
        x -= 1;
        lines.push({ kind: 'removed', text: a[x] ?? '' });
      }
    }
  }
  return lines.reverse();
}
