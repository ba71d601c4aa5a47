// Terminal output as colored pieces of plain text. Nothing is ever interpreted as HTML.

export interface Piece {
  text: string;
  class: string;
  /** CSS for colors that have no class. */
  style?: string;
}

const COLOURS = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];
const FONTS: Record<number, string> = { 1: 'a-bold', 2: 'a-dim', 3: 'a-italic', 4: 'a-underline', 7: 'a-inverse', 9: 'a-struck' };
/** Which classes each reset code ends. */
const ENDS: Record<number, string[]> = { 22: ['a-bold', 'a-dim'], 23: ['a-italic'], 24: ['a-underline'], 27: ['a-inverse'], 29: ['a-struck'] };

type Side = 'fg' | 'bg';

interface Style {
  fonts: Set<string>;
  /** One of eight color names, or a CSS color. */
  fg: string;
  bg: string;
}

const plain = (): Style => ({ fonts: new Set(), fg: '', bg: '' });

/** Splits at color codes, drops all other control sequences, and lets a carriage return overwrite its line. */
export function ansi(text: string): Piece[] {
  const pieces: Piece[] = [];
  let style = plain();
  const add = (part: string) => {
    if (part) pieces.push({ text: part, ...shown(style) });
  };
  // eslint-disable-next-line no-control-regex
  const sequence = /\x1b\[([0-9;:?]*)([ -/]*[@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|[\x00-\x08\x0b\x0c\x0e-\x1a\x7f]/g;
  let from = 0;
  const clean = overwrite(text);
  for (const found of clean.matchAll(sequence)) {
    add(clean.slice(from, found.index));
    from = found.index + found[0].length;
    if (found[2] === 'm') style = restyle(style, found[1] ?? '');
  }
  add(clean.slice(from));
  return pieces;
}

function shown({ fonts, fg, bg }: Style): { class: string; style?: string } {
  const named = (side: Side, colour: string) => (COLOURS.includes(colour) ? [`a-${side}-${colour}`] : []);
  const other = (property: string, colour: string) => (colour && !COLOURS.includes(colour) ? [`${property}: ${colour}`] : []);
  const css = [...other('color', fg), ...other('background-color', bg)].join('; ');
  return { class: [...fonts, ...named('fg', fg), ...named('bg', bg)].join(' '), ...(css && { style: css }) };
}

/** The visible part of overwritten lines. A carriage return at the very end has not overwritten anything yet. */
function overwrite(text: string): string {
  if (!text.includes('\r')) return text;
  return text
    .split('\n')
    .map((line) => line.replace(/\r+$/, ''))
    .map((line) => line.slice(line.lastIndexOf('\r') + 1))
    .join('\n');
}

function restyle(before: Style, codes: string): Style {
  let style: Style = { ...before, fonts: new Set(before.fonts) };
  const words = codes.split(';');
  for (let index = 0; index < words.length; index += 1) {
    const code = Number.parseInt(words[index] || '0', 10);
    const font = FONTS[code];
    if (code === 0) style = plain();
    else if (font) style.fonts.add(font);
    else if (ENDS[code]) ENDS[code].forEach((name) => style.fonts.delete(name));
    else if (code === 38 || code === 48) {
      // The numbers of a color follow as separate parameters, or in the same one after colons.
      const inside = words[index]?.split(':').slice(1) ?? [];
      const rest = (inside.length > 0 ? inside : words.slice(index + 1, index + 5)).map(Number);
      style[code === 38 ? 'fg' : 'bg'] = rest[0] === 5 ? ofPalette(rest[1] ?? 0) : ofNumbers(inside.length > 4 ? rest.slice(2) : rest.slice(1));
      if (inside.length === 0) index += rest[0] === 5 ? 2 : 4;
    } else if (code === 39) style.fg = '';
    else if (code === 49) style.bg = '';
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) style.fg = COLOURS[code % 10] ?? '';
    else if ((code >= 40 && code <= 47) || (code >= 100 && code <= 107)) style.bg = COLOURS[code % 10] ?? '';
  }
  return style;
}

function ofNumbers(numbers: number[]): string {
  const [red = 0, green = 0, blue = 0] = numbers.map((number) => Math.min(255, Math.max(0, Math.trunc(number) || 0)));
  return `rgb(${red} ${green} ${blue})`;
}

/** The 256-color palette: 16 named colors, a 6 × 6 × 6 cube, and 24 grays. */
function ofPalette(number: number): string {
  if (!(number >= 0 && number <= 255)) return '';
  if (number < 16) return COLOURS[number % 8] ?? '';
  if (number >= 232) return ofNumbers(Array<number>(3).fill(8 + (number - 232) * 10));
  const level = (value: number) => (value === 0 ? 0 : 55 + value * 40);
  const place = number - 16;
  return ofNumbers([level(Math.floor(place / 36)), level(Math.floor(place / 6) % 6), level(place % 6)]);
}
