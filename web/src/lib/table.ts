// The table of an HTML output, such as a data frame, as plain-text cells. The HTML itself is never rendered.

export interface Table {
  head: string[][];
  body: { heads: string[]; cells: string[] }[];
  isCut: boolean;
}

const MOST_ROWS = 200;
const MOST_COLUMNS = 50;

/** The first table; `null` if there is none, or if the HTML shows more than a table. */
export function tableOf(html: string): Table | null {
  if (!/<table[\s>]/i.test(html)) return null;
  const page = new DOMParser().parseFromString(html, 'text/html');
  const table = page.querySelector('table');
  if (!table || page.querySelectorAll('table').length > 1 || page.querySelector('img, svg, canvas, script')) return null;
  const text = (cell: Element) => (cell.textContent ?? '').trim();
  const cellsOf = (row: Element) => [...row.querySelectorAll('th, td')].slice(0, MOST_COLUMNS);
  const head = [...table.querySelectorAll('thead tr')].map((row) => cellsOf(row).map(text));
  const rows = [...table.querySelectorAll('tr')].filter((row) => !row.closest('thead'));
  const body = rows.slice(0, MOST_ROWS).map((row) => ({
    heads: cellsOf(row).filter((cell) => cell.tagName === 'TH').map(text),
    cells: cellsOf(row).filter((cell) => cell.tagName !== 'TH').map(text),
  }));
  return { head, body, isCut: rows.length > MOST_ROWS };
}

/** Numbers are right-aligned. */
export function isNumber(text: string): boolean {
  return /^[-+−]?[\d.,  ]+(e[-+]?\d+)?\s?%?$/i.test(text) || text === 'NaN';
}
