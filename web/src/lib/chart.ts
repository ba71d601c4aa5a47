// Charts over time, in a box of 300 by 60 units.

export const WIDTH = 300;
export const HEIGHT = 60;
/** A shorter time than this does not fill the width. */
const LEAST_SPAN_MS = 60_000;

export interface Point {
  time: number;
  value: number;
}

/** The height of a value in the box; `most` is the value at its top. */
export function heightOf(value: number, most: number): number {
  return HEIGHT - 2 - (Math.min(value, most) / most) * (HEIGHT - 4);
}

function places(points: Point[], most: number): string[] {
  const last = points.at(-1)?.time ?? 0;
  const span = Math.max(LEAST_SPAN_MS, last - (points[0]?.time ?? 0));
  return points.map(({ time, value }) => `${(WIDTH - ((last - time) / span) * WIDTH).toFixed(1)},${heightOf(value, most).toFixed(1)}`);
}

/** The line through the points, the newest at the right edge. */
export function lineOf(points: Point[], most: number): string {
  return points.length > 1 ? `M${places(points, most).join(' L')}` : '';
}

/** The area below the line. */
export function areaOf(points: Point[], most: number): string {
  if (points.length < 2) return '';
  const list = places(points, most);
  return `M${list.join(' L')} L${WIDTH},${HEIGHT} L${list[0]?.split(',')[0]},${HEIGHT} Z`;
}

/** At most this many entries: of the older half, every second one is dropped. */
export function thinned<T>(list: T[], most: number): T[] {
  if (list.length <= most) return list;
  const half = Math.floor(list.length / 2);
  return [...list.slice(0, half).filter((_, index) => index % 2 === 0), ...list.slice(half)];
}
