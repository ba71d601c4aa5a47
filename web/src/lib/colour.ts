// Syntax highlighting, line by line. Languages are loaded on first use.

import { LanguageSupport } from '@codemirror/language';
import { classHighlighter, highlightCode } from '@lezer/highlight';
import { languageOf } from './editor';

export interface Coloured {
  text: string;
  class: string;
}

/** Text beyond this length is not highlighted. */
const MOST = 100_000;

/** The highlighted lines of a text, in the language of the file name. */
export async function colourLines(text: string, path: string): Promise<Coloured[][]> {
  const plain = () => text.split('\n').map((line) => [{ text: line, class: '' }]);
  if (text.length > MOST) return plain();
  const language = await languageOf(path);
  if (!(language instanceof LanguageSupport)) return plain();
  const lines: Coloured[][] = [[]];
  highlightCode(
    text,
    language.language.parser.parse(text),
    classHighlighter,
    (piece, classes) => lines.at(-1)?.push({ text: piece, class: classes }),
    () => lines.push([]),
  );
  return lines;
}
