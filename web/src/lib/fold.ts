// The page's state of a job, folded from its events one by one, so that a finished job can be replayed by folding
// only some of them. A changed item is replaced, never mutated, so that components detect the change.

import { addOutput, best, decode, isSamePicture, richOf, type CallItem, type Rich } from './call-item';
import { changeFiles, takeFound, type KnownFile } from './known';

export interface LogEvent {
  sequence: number;
  time_ms: number;
  kind: string;
  data?: any;
  call?: { id: string; attempt: number } | null;
  /** The API caller that caused the event. */
  actor?: { name: string; key?: string } | null;
}

export interface TextItem {
  kind: 'thought' | 'said' | 'person' | 'notice' | 'state' | 'finish' | 'point';
  key: string;
  sequence: number;
  time: number;
  text: string;
  tone: 'plain' | 'good' | 'bad' | 'wait';
}

export type Item = CallItem | TextItem;

export interface PlanItem {
  text: string;
  status: 'pending' | 'in_progress' | 'done' | 'skipped';
}

export interface Ask {
  id: string;
  kind: string;
  text: string;
  call?: string;
  options?: string[];
  plan?: { items: PlanItem[] } | null;
  command?: string | null;
  egress?: { host: string; port: number; rule: string; code: string; reason: string } | null;
  deadline_ms?: number | null;
}

export interface Connection {
  id: number;
  key: string;
  time: number;
  host: string;
  port: number;
  method: string;
  verdict: string;
  rule: string;
  reason: string;
  /** The policy change that would allow the connection. */
  remedy: string;
  up: number;
  down: number;
  open: boolean;
}

export interface Spent {
  turns: number;
  /** Started calls, of the agent and of users. */
  calls: number;
  /** Ended calls of the agent, which is what the budget counts. */
  toolCalls: number;
  input: number;
  output: number;
  dollars: number;
  prompt: number;
  window: number;
  /** Milliseconds of work until the job last waited, and the time since which it works now. */
  worked: number;
  workingSince: number | null;
}

export interface Folded {
  last: number;
  time: number;
  state: string;
  code: string;
  reason: string;
  items: Item[];
  /** Index of each call in `items`. */
  calls: Map<string, number>;
  plan: PlanItem[];
  /** The plan item under which calls are shown. */
  point: string;
  asks: Ask[];
  connections: Connection[];
  byConnection: Map<number, number>;
  spent: Spent;
  budget: Budget;
  model: string;
  /** The answer and reasoning that the model is streaming; not in the log yet. */
  saying: string;
  thinking: string;
  folds: { key: string; range: string; level: number; text: string }[];
  holder: string;
  /** The sequence number of the holder's takeover event. */
  holderSince: number;
  /** Whether the workspace starts from a cloned repository. */
  isCloned: boolean;
  screenshots: { sequence: number; time: number; rich: Rich }[];
  /** Files of the workspace, as far as the log reveals them. */
  files: Map<string, KnownFile>;
  /** The commit at which the job's repository was cloned. */
  commit: string | null;
  artifact: boolean;
}

export interface Budget {
  money_usd?: number | null;
  tokens?: number | null;
  turns?: number | null;
  tool_calls?: number | null;
  wall_s?: number | null;
}

export function empty(): Folded {
  return {
    last: 0,
    time: 0,
    state: 'queued',
    code: '',
    reason: '',
    items: [],
    calls: new Map(),
    plan: [],
    point: '',
    asks: [],
    connections: [],
    byConnection: new Map(),
    spent: { turns: 0, calls: 0, input: 0, output: 0, dollars: 0, prompt: 0, window: 0, toolCalls: 0, worked: 0, workingSince: null },
    budget: {},
    model: '',
    saying: '',
    thinking: '',
    folds: [],
    holder: '',
    holderSince: 0,
    isCloned: false,
    screenshots: [],
    files: new Map(),
    commit: null,
    artifact: false,
  };
}

/** A copy of the state for display, which further folding does not change. */
export function snapshot(job: Folded): Folded {
  return { ...job, items: job.items.slice(), connections: job.connections.slice(), screenshots: job.screenshots.slice(), spent: { ...job.spent } };
}

/** A copy of the state from which folding can continue later. */
export function branch(job: Folded): Folded {
  return { ...snapshot(job), calls: new Map(job.calls), byConnection: new Map(job.byConnection) };
}

export function fold(job: Folded, event: LogEvent): void {
  if (event.sequence <= job.last) return;
  job.last = event.sequence;
  job.time = event.time_ms;
  const data = event.data ?? {};
  let said = 0;
  const say = (kind: TextItem['kind'], text: string, tone: TextItem['tone'] = 'plain') => {
    const key = said === 0 ? `e${event.sequence}` : `e${event.sequence}.${said}`;
    said += 1;
    job.items.push({ kind, key, sequence: event.sequence, time: event.time_ms, text, tone });
  };
  const handler = HANDLERS[event.kind];
  if (handler) handler(job, event, data, say);
}

type Say = (kind: TextItem['kind'], text: string, tone?: TextItem['tone']) => void;
type Handler = (job: Folded, event: LogEvent, data: any, say: Say) => void;

/** The current item of the event's call. */
export function callOf(job: Folded, key: string): CallItem | undefined {
  const place = job.calls.get(key);
  return place === undefined ? undefined : (job.items[place] as CallItem);
}

function change(job: Folded, event: LogEvent, how: (call: CallItem) => Partial<CallItem>): void {
  const place = job.calls.get(callKey(event));
  if (place === undefined) return;
  const call = job.items[place] as CallItem;
  job.items[place] = { ...call, ...how(call) };
}

/** Tools whose calls add nothing to what the timeline shows anyway. */
const SILENT = new Set(['plan', 'finish', 'ask_user']);

const HANDLERS: Record<string, Handler> = {
  job_created(job, _event, data, say) {
    const task = data.spec?.work?.task;
    const text = typeof task === 'string' ? task : task?.text;
    if (text) say('person', text);
    job.budget = data.spec?.agent?.budget ?? data.spec?.budget ?? {};
    job.isCloned = Boolean(data.spec?.git);
  },
  state_changed(job, event, data, say) {
    if (job.spent.workingSince !== null) job.spent.worked += Math.max(0, event.time_ms - job.spent.workingSince);
    job.spent.workingSince = data.state === 'running' ? event.time_ms : null;
    const before = job.state;
    job.state = data.state;
    job.code = data.code ?? '';
    job.reason = data.reason ?? '';
    const why = job.reason ? `: ${job.reason}` : '';
    if (data.state !== 'running') job.saying = job.thinking = '';
    if (data.state === 'paused') say('state', job.code === 'question' || job.code === 'approval' ? 'Waits for a person' : `Paused${why}`, 'wait');
    else if (data.state === 'failed') say('state', `Failed${why}`, 'bad');
    else if (data.state === 'cancelled') say('state', `Cancelled${why}`, 'wait');
    else if (data.state === 'complete') say('state', 'Complete', 'good');
    else if (data.state === 'running' && before === 'paused') say('state', 'Goes on', 'plain');
  },
  sandbox_ready(_job, _event, data, say) {
    const missing = (data.unenforced ?? []).map((limit: any) => `${limit.limit}: ${limit.why}`).join('; ');
    say('state', missing ? `The sandbox is ready. Not enforced on this host: ${missing}` : 'The sandbox is ready');
  },
  sandbox_lost(_job, _event, data, say) {
    const names = (kernel: any) => kernel.variables.join(', ') || 'no variable is known by name';
    const kernels = (data.kernels ?? []).map((kernel: any) => ` Lost with it: the kernel ${kernel.name} (${names(kernel)}).`);
    say('state', `The sandbox was lost: ${data.detail}. The work goes back to the last checkpoint.${kernels.join('')}`, 'bad');
  },
  sandbox_paused(_job, _event, data, say) {
    say('state', `The sandbox stands still: ${data.reason}`, 'wait');
  },
  sandbox_resumed(_job, _event, _data, say) {
    say('state', 'The sandbox goes on');
  },
  call_started(job, event, data) {
    const key = callKey(event);
    // A further attempt of an agent's call is a cell that runs again after its kernel was lost.
    if (!event.call?.id.startsWith('turn-') || event.call.attempt === 1) job.spent.calls += 1;
    if (SILENT.has(data.tool)) return;
    job.calls.set(key, job.items.length);
    job.items.push({
      kind: 'call', key, sequence: event.sequence, time: event.time_ms, tool: data.tool, input: data.input ?? {}, step: data.step ?? null,
      attempt: event.call?.attempt ?? 1, status: 'running', exitCode: null, reason: '', note: '', said: '', duration: null,
      output: [], outputBytes: 0, hiddenBytes: 0, keptLength: 0, rich: [], by: event.actor?.name ?? '',
    });
  },
  call_output(job, event, data) {
    change(job, event, (call) => addOutput(call, data.stream, data.base64 ? decode(data.text) : data.text));
  },
  call_output_dropped(job, event, data) {
    change(job, event, (call) => ({ hiddenBytes: call.hiddenBytes + (data.bytes ?? 0) }));
  },
  call_display(job, event, data) {
    change(job, event, (call) => {
      if (data.display === 'clear') return { rich: [] };
      if (data.error) return addOutput(call, 'stderr', `${(data.error.traceback ?? []).join('\n') || data.text}\n`);
      const name = data.display_id ?? undefined;
      const forms = best(data.data ?? {}, data.text ?? '').map((form) => ({ ...form, shownAs: name }));
      if (name === undefined || !call.rich.some((known) => known.shownAs === name)) return { rich: [...call.rich, ...forms] };
      return { rich: call.rich.flatMap((known) => (known.shownAs === name ? forms : [known])) };
    });
  },
  call_ended(job, event, data) {
    if (event.call?.id.startsWith('turn-')) job.spent.toolCalls += 1;
    const result = data.result ?? {};
    const shown = callOf(job, callKey(event));
    if (!shown) return;
    const told = [...richOf(data), ...richOf(result)];
    // The end of a cell repeats the images that the cell has shown, perhaps smaller.
    const isShown = shown.rich.filter((known) => known.type.startsWith('image/')).length >= told.length;
    const pictures = isShown ? [] : told.filter((picture) => !shown.rich.some((known) => isSamePicture(known, picture)));
    change(job, event, (call) => {
      const text = result.text ?? data.text ?? (typeof data.result === 'string' ? data.result : '');
      const isSaid = call.output.length === 0 && call.rich.length === 0 && typeof text === 'string' && text !== '';
      return {
        status: data.status === 'done' ? 'succeeded' : data.status === 'malformed' ? 'failed' : data.status,
        exitCode: data.exit_code ?? null,
        reason: data.reason ?? '',
        note: data.note ?? '',
        duration: data.duration_ms ?? null,
        said: isSaid && !text.includes('\n') ? text : '',
        rich: [...call.rich, ...pictures],
        ...(isSaid && text.includes('\n') ? addOutput(call, 'stdout', text) : {}),
      };
    });
    const after = callOf(job, callKey(event));
    for (const rich of after?.rich ?? []) {
      if (rich.type.startsWith('image/')) job.screenshots.push({ sequence: event.sequence, time: event.time_ms, rich });
    }
    if (after?.tool === 'git_clone') job.commit = /(?:^|\n)at ([0-9a-f]{7,40}) /.exec(after.output.map((part) => part.text).join(''))?.[1] ?? null;
    if (after?.status === 'succeeded') job.files = changeFiles(job.files, after.tool, after.input, event.sequence);
  },
  turn_started(job, _event, data) {
    job.spent.prompt = data.prompt_tokens ?? job.spent.prompt;
    job.model = data.model ?? job.model;
    job.saying = job.thinking = '';
  },
  model_answered(job, _event, data, say) {
    const answer = data.answer ?? {};
    job.saying = job.thinking = '';
    job.spent.turns = Math.max(job.spent.turns, data.turn ?? 0);
    spend(job, answer.usage, answer.cost);
    spend(job, answer.lost, null);
    for (const part of answer.parts ?? []) {
      if (part.reasoning?.text) say('thought', part.reasoning.text);
      if (typeof part.text === 'string' && part.text.trim()) say('said', part.text);
    }
  },
  plan_changed(job, _event, data, say) {
    job.plan = data.plan?.items ?? [];
    const current = job.plan.find((item) => item.status === 'in_progress')?.text ?? '';
    if (current && current !== job.point) say('point', current);
    job.point = current;
  },
  message_received(_job, _event, data, say) {
    say('person', data.text ?? '');
  },
  agent_notified(_job, _event, data, say) {
    say('notice', data.text ?? '');
  },
  note(_job, _event, data, say) {
    say('notice', data.text ?? '');
  },
  note_saved(_job, _event, data, say) {
    say('notice', data.text ? `Noted (${data.name}): ${data.text}` : `Forgot the note ${data.name}`);
  },
  input_requested(job, _event, data) {
    job.asks = [...job.asks.filter((ask) => ask.id !== data.id), data as Ask];
  },
  input_answered(job, _event, data, say) {
    const ask = job.asks.find((open) => open.id === data.id);
    job.asks = job.asks.filter((open) => open.id !== data.id);
    if (!ask) return;
    if (ask.kind === 'question') say('said', ask.text);
    if (data.answer) say('person', describeAnswer(ask, data.answer));
    else say('notice', `Nobody answered in time${WAITED_FOR[ask.kind] ? `: ${WAITED_FOR[ask.kind]}` : ''}.`);
  },
  budget_changed(job, _event, data) {
    job.budget = data.budget ?? data;
  },
  taken_over(job, event, data, say) {
    job.holder = data.by ?? 'a person';
    job.holderSince = event.sequence;
    say('state', `Taken over by ${job.holder}`, 'wait');
  },
  handed_back(job, _event, _data, say) {
    job.holder = '';
    say('state', 'Handed back to the agent');
  },
  context_changed(job, event, data) {
    if (data.kind === 'window') job.spent.window = data.budget_tokens ?? job.spent.window;
    if (data.kind === 'summary') takeSummary(job, event, data);
  },
  summary_created(job, event, data) {
    spend(job, data.usage, data.cost);
    takeSummary(job, event, data.summary);
  },
  agent_finished(_job, _event, data, say) {
    say('finish', data.summary ?? '', data.outcome === 'failed' ? 'bad' : 'good');
  },
  egress(job, event, data) {
    const name = data.event;
    if (name === 'fetched') return;
    const place = job.byConnection.get(data.id);
    const known = place === undefined ? undefined : job.connections[place];
    const connection: Connection = {
      ...(known ?? { id: data.id, key: `${event.sequence}`, time: event.time_ms, host: data.host, port: data.port, method: data.method, verdict: data.verdict, rule: data.rule, reason: '', remedy: '', up: 0, down: 0, open: false }),
      open: name === 'opened',
    };
    connection.up = data.bytes_up ?? connection.up;
    connection.down = data.bytes_down ?? connection.down;
    connection.reason = data.reason ?? connection.reason;
    connection.remedy = data.remedy ?? connection.remedy;
    if (known && place !== undefined && name === 'closed') job.connections[place] = connection;
    else {
      job.byConnection.set(data.id, job.connections.length);
      job.connections.push({ ...connection, key: `${event.sequence}` });
    }
  },
  user_action(_job, event, data, say) {
    say('notice', `${event.actor?.name ?? 'Somebody'} ${describeAction(data)}`, data.failed ? 'bad' : undefined);
  },
  files_changed(job, event, data) {
    job.files = takeFound(job.files, data, event.sequence);
  },
  artifact_stored(job) {
    job.artifact = true;
  },
};

/** Describes a user action in the sandbox, other than running something. */
function describeAction(deed: any): string {
  const said: Record<string, string> = {
    file_put: `put ${deed.path} (${deed.bytes ?? 0} bytes)`,
    directory_made: `made the directory ${deed.path}`,
    link_made: `made ${deed.path} a link to ${deed.to}`,
    file_moved: `moved ${deed.path} to ${deed.to}`,
    file_deleted: `deleted ${deed.path}`,
    stdin_given: `wrote ${deed.bytes ?? 0} bytes to a standard input`,
    terminal_joined: 'came to a terminal',
    kernel_interrupted: `interrupted the kernel ${deed.name}`,
    kernel_restarted: `restarted the kernel ${deed.name}`,
  };
  const words = said[deed.what] ?? String(deed.what ?? '').replaceAll('_', ' ');
  return deed.failed ? `${words}: in vain, ${deed.failed}` : words;
}

function spend(job: Folded, usage: any, cost: any): void {
  job.spent.input += (usage?.input ?? 0) + (usage?.cached_input ?? 0) + (usage?.cache_write ?? 0);
  job.spent.output += usage?.output ?? 0;
  job.spent.dollars += dollarsOf(cost);
}

/** Shows the summary that replaces older events in the prompt; without a summary, rules condensed them. */
function takeSummary(job: Folded, event: LogEvent, summary: any): void {
  if (!summary?.text) return;
  job.folds = [...job.folds, { key: `${event.sequence}`, range: rangeText(summary.range), level: summary.level ?? 1, text: summary.text }];
}

function callKey(event: LogEvent): string {
  return event.call ? `${event.call.id}.${event.call.attempt}` : `e${event.sequence}`;
}

function dollarsOf(cost: any): number {
  if (typeof cost === 'number') return cost / 1e9;
  return cost?.nanodollars ? cost.nanodollars / 1e9 : 0;
}

function rangeText(range: any): string {
  if (Array.isArray(range)) return `${range[0]}–${range.at(-1)}`;
  if (range && typeof range === 'object') return `${range.start ?? range.first}–${range.end ?? range.last}`;
  return String(range ?? '');
}

/** What did not happen because nobody answered the input request. */
const WAITED_FOR: Record<string, string> = { plan: 'the plan was not accepted', command: 'the command was not allowed', egress: 'the connection was not allowed' };

function describeAnswer(ask: Ask, answer: any): string {
  const verdict = answer.accept === true ? 'Accepted' : answer.accept === false ? 'Refused' : '';
  const what = ask.egress ? ` ${ask.egress.host}:${ask.egress.port}` : '';
  return [verdict && `${verdict}${what}`, answer.text].filter(Boolean).join(': ') || (answer.plan ? 'Accepted with changes' : 'Answered');
}
