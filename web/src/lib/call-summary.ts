// One line that says what a call acts on: its target, or else its arguments.

import { firstLine } from './format';
import { splitTool } from './mcp';
import { partsOf } from './patch';

type Input = Record<string, unknown> | null | undefined;

const MOST = 160;
/** The fields that name a call's target, most telling first. */
const TARGETS = ['command', 'path', 'code', 'query', 'url', 'script', 'from', 'pattern', 'question'];
/** The fields that are not worth a place in the line. */
const LEFT_OUT = new Set(['tool', 'content', 'mode', 'timeout_s', 'wait_s', 'name', 'expect', 'continue_on_error']);

function text(value: unknown): string {
  return typeof value === 'string' ? value : (JSON.stringify(value) ?? '');
}

const isGiven = (value: unknown) => value !== undefined && value !== null && value !== '' && value !== false;

function arguments_(input: Record<string, unknown>, hidden: ReadonlySet<string>): string {
  return Object.entries(input)
    .filter(([name, value]) => !hidden.has(name) && !LEFT_OUT.has(name) && isGiven(value))
    .map(([name, value]) => `${name}=${firstLine(text(value), 60)}`)
    .join(' ');
}

/** The element of a page that an action is about: its visible text in quotes, or its selector, or its reference. */
function elementOf(input: Record<string, unknown>): string {
  if (isGiven(input.text)) return `“${firstLine(text(input.text), 60)}”`;
  return firstLine(text([input.selector, input.ref].find(isGiven) ?? ''), 60);
}

/** An action in the browser: what it does, to which element, and with what. */
function browserAction(input: Record<string, unknown>, action: string): string {
  const shown = action === 'open' ? text(input.url ?? '') : elementOf(input);
  const rest = arguments_(input, new Set(['action', 'text', 'selector', 'ref', 'url', 'expression', 'value']));
  const value = isGiven(input.value) ? `= ${firstLine(text(input.value), 60)}` : '';
  return [action, shown, value, isGiven(input.expression) ? firstLine(text(input.expression), 100) : '', rest].filter(Boolean).join(' ');
}

/** The name of the element that a click has hit. The agent gets the result as JSON text. */
export function clickedIn(result: any, said: unknown): string {
  if (typeof result?.clicked === 'string') return result.clicked;
  if (typeof said !== 'string' || !said.startsWith('{')) return '';
  try {
    const { clicked } = JSON.parse(said);
    return typeof clicked === 'string' ? clicked : '';
  } catch {
    return '';
  }
}

export function summaryOf(input: Input, tool = ''): string {
  if (!input) return '';
  // A tool of an MCP server may give any meaning to any name, so all of its arguments count.
  if (splitTool(tool)) return firstLine(Object.entries(input).filter(([, value]) => isGiven(value)).map(([name, value]) => `${name}=${firstLine(text(value), 60)}`).join(' '), MOST);
  if (typeof input.patch === 'string') return firstLine((partsOf(input.patch) ?? []).map((part) => part.path).join(', '), MOST);
  if (tool === 'browser' && typeof input.action === 'string') return firstLine(browserAction(input, input.action), MOST);
  // An action on the desktop says what it does, and then to what.
  if (typeof input.action === 'string') return firstLine(`${input.action} ${arguments_(input, new Set(['action']))}`.trim(), MOST);
  if (isGiven(input.from) && isGiven(input.to)) return firstLine(`${text(input.from)} → ${text(input.to)}`, MOST);
  const target = TARGETS.find((name) => isGiven(input[name]));
  return firstLine(target ? text(input[target]) : arguments_(input, new Set()), MOST);
}
