// The page's state of a job, folded from its events one by one, so that a finished job can be replayed by folding
// only some of them. A changed item is replaced, never mutated, so that components detect the change.

import { addOutput, best, decode, isSamePicture, richOf, type CallItem } from './call-item';
import { clickedIn } from './call-summary';
import { changedByScan, changedByTool } from './changes';
import { describeAction, describeAnswer, describeLoss, nameOf, WAITED_FOR } from './event-text';
import { duration } from './format';
import type { Ask, Connection, Folded, LogEvent, TextItem } from './folded';
import { changeFiles, putFile, takeFound } from './known';
import { countTime, limitsOf, millisecondsOf } from './limits';
import { takeServer } from './mcp';

export * from './folded';

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

/** Tools whose images are of the desktop or its browser. */
const ON_SCREEN = new Set(['gui', 'browser', 'screenshot']);

/** Tools whose calls add nothing to what the timeline shows anyway. */
const SILENT = new Set(['plan', 'finish', 'ask_user']);

const HANDLERS: Record<string, Handler> = {
  job_created(job, _event, data, say) {
    const spec = data.spec ?? {};
    const task = spec.work?.task;
    const text = typeof task === 'string' ? task : task?.text;
    if (text) say('person', text);
    job.budget = spec.agent?.budget ?? spec.budget ?? {};
    job.isCloned = Boolean(spec.git);
    job.limits = limitsOf(spec.limits);
    job.clock.limit = millisecondsOf(spec.wall_clock);
    job.egressWait = millisecondsOf(spec.egress_settings?.wait);
  },
  state_changed(job, event, data, say) {
    if (job.spent.workingSince !== null) job.spent.worked += Math.max(0, event.time_ms - job.spent.workingSince);
    job.spent.workingSince = data.state === 'running' ? event.time_ms : null;
    const before = job.state;
    job.state = data.state;
    countTime(job, event.time_ms);
    job.code = data.code ?? '';
    job.reason = data.reason ?? '';
    const why = job.reason ? `: ${job.reason}` : '';
    if (data.state !== 'running') job.saying = job.thinking = '';
    if (data.state === 'paused') say('state', job.code === 'question' || job.code === 'approval' ? 'Waiting for an answer' : `Paused${why}`, 'wait');
    else if (data.state === 'failed') say('state', `Failed${why}`, 'bad');
    else if (data.state === 'cancelled') say('state', `Cancelled${why}`, 'wait');
    else if (data.state === 'complete') say('state', 'Complete', 'good');
    else if (data.state === 'running' && before === 'paused') say('state', 'Resumed', 'plain');
  },
  sandbox_ready(job, _event, data, say) {
    job.hasSandbox = true;
    const missing = (data.unenforced ?? []).map((limit: any) => `${limit.limit}: ${limit.why}`).join('; ');
    say('state', missing ? `Sandbox ready. Not enforced on this host: ${missing}` : 'Sandbox ready');
  },
  sandbox_lost(_job, _event, data, say) {
    say('state', describeLoss(data), 'bad');
  },
  sandbox_paused(_job, _event, data, say) {
    say('state', `Sandbox paused: ${data.reason}`, 'wait');
  },
  sandbox_resumed(_job, _event, _data, say) {
    say('state', 'Sandbox resumed');
  },
  call_started(job, event, data) {
    const key = callKey(event);
    // A further attempt of an agent's call is a cell that runs again after its kernel was lost.
    if (!event.call?.id.startsWith('turn-') || event.call.attempt === 1) job.spent.calls += 1;
    if (SILENT.has(data.tool)) return;
    job.calls.set(key, job.items.length);
    job.items.push({
      kind: 'call', key, sequence: event.sequence, time: event.time_ms, tool: data.tool, input: data.input ?? {}, step: data.step ?? null,
      attempt: event.call?.attempt ?? 1, status: 'running', exitCode: null, reason: '', note: '', target: '', said: '', duration: null,
      output: [], outputBytes: 0, hiddenBytes: 0, keptLength: 0, rich: [], by: event.actor ? nameOf(event.actor) : '',
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
        target: call.tool === 'browser' ? clickedIn(result, text) : '',
        duration: data.duration_ms ?? null,
        said: isSaid && !text.includes('\n') ? text : '',
        rich: [...call.rich, ...pictures],
        ...(isSaid && text.includes('\n') ? addOutput(call, 'stdout', text) : {}),
      };
    });
    const after = callOf(job, callKey(event));
    for (const rich of after?.rich ?? []) {
      if (rich.type.startsWith('image/')) job.screenshots.push({ sequence: event.sequence, time: event.time_ms, rich, isScreen: ON_SCREEN.has(after?.tool ?? '') });
    }
    if (after?.tool === 'git_clone') job.commit = /(?:^|\n)at ([0-9a-f]{7,40}) /.exec(after.output.map((part) => part.text).join(''))?.[1] ?? null;
    if (after?.status !== 'succeeded') return;
    job.changes = changedByTool(job.changes, job.files, after.tool, after.input);
    job.files = changeFiles(job.files, after.tool, after.input, event.sequence);
  },
  turn_started(job, event, data) {
    job.window.prompt = data.prompt_tokens ?? job.window.prompt;
    job.window.most = Math.floor((job.window.budget * 1000) / job.window.factor);
    job.window.asked = event.sequence;
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
    // Every job has this notice, and users know the sandbox that they asked for.
    if (data.code !== 'environment') say('notice', data.text ?? '');
  },
  note(_job, _event, data, say) {
    say('notice', data.text ?? '');
  },
  note_saved(_job, _event, data, say) {
    say('notice', data.text ? `Saved the note ${data.name}: ${data.text}` : `Deleted the note ${data.name}`);
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
    else say('notice', `No answer in time${WAITED_FOR[ask.kind] ? `: ${WAITED_FOR[ask.kind]}` : ''}.`);
  },
  budget_changed(job, _event, data) {
    job.budget = data.budget ?? data;
  },
  time_limit_changed(job, event, data, say) {
    job.clock.limit = data.after_ms ?? job.clock.limit;
    say('notice', `${nameOf(event.actor)} extended the time limit to ${duration(job.clock.limit)}`);
  },
  taken_over(job, event, data, say) {
    job.holder = data.by ?? 'a user';
    job.holderSince = event.sequence;
    say('state', `Taken over by ${job.holder}`, 'wait');
  },
  handed_back(job, _event, _data, say) {
    job.holder = '';
    say('state', 'Handed back to the agent');
  },
  context_changed(job, event, data) {
    if (data.kind === 'window') Object.assign(job.window, { budget: data.budget_tokens ?? job.window.budget, factor: data.factor ?? 1000 });
    if (data.kind === 'correction') job.window.factor = data.factor ?? job.window.factor;
    if (data.kind === 'tighten' && data.limit_tokens) job.window.budget = Math.min(job.window.budget, data.limit_tokens);
    if (data.kind === 'summary') takeSummary(job, event, data);
  },
  summary_created(job, event, data) {
    spend(job, data.usage, data.cost);
    takeSummary(job, event, data.summary);
  },
  agent_finished(job, _event, data, say) {
    job.result = { summary: data.summary ?? '', isFailed: data.outcome === 'failed' };
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
  mcp_changed(job, _event, data) {
    job.servers = takeServer(job.servers, data);
  },
  user_action(job, event, data, say) {
    say('notice', `${nameOf(event.actor)} ${describeAction(data)}`, data.failed ? 'bad' : undefined);
    // What is uploaded to a draft is not the job's own work.
    if (data.what === 'file_put' && !data.failed && job.clock.startedAt === null) job.files = putFile(job.files, data.path, data.bytes ?? 0, event.sequence);
  },
  files_changed(job, event, data) {
    const isBaseline = data.whole && !job.isListed && job.isCloned;
    job.changes = changedByScan(job.changes, job.files, data, isBaseline);
    job.isListed ||= Boolean(data.whole);
    job.files = takeFound(job.files, data, event.sequence);
  },
  screen_captured(job, event, data) {
    for (const rich of richOf(data)) job.screenshots.push({ sequence: event.sequence, time: event.time_ms, rich, isScreen: true });
  },
  artifact_stored(job) {
    job.artifact = true;
  },
};

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
