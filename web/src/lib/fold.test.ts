import { expect, test } from 'vitest';
import { branch, callOf, empty, fold, snapshot, type LogEvent } from './fold';

function play(events: Partial<LogEvent>[]) {
  const job = empty();
  events.forEach((event, index) => fold(job, { sequence: index + 1, time_ms: 1000 + index, kind: '', ...event } as LogEvent));
  return job;
}
const call = { id: 'step-1', attempt: 1 };

test('a call gathers its output and its end', () => {
  const job = play([
    { kind: 'call_started', call, data: { tool: 'shell', input: { command: 'ls' }, step: 0 } },
    { kind: 'call_output', call, data: { stream: 'stdout', text: 'a' } },
    { kind: 'call_output', call, data: { stream: 'stdout', text: 'b' } },
    { kind: 'call_output', call, data: { stream: 'stderr', text: 'c' } },
    { kind: 'call_ended', call, data: { status: 'failed', exit_code: 2, reason: 'exit code 2', duration_ms: 5 } },
  ]);
  expect(job.items).toHaveLength(1);
  expect(callOf(job, 'step-1.1')).toMatchObject({
    status: 'failed', exitCode: 2, output: [{ stream: 'stdout', text: 'ab' }, { stream: 'stderr', text: 'c' }],
  });
});

test('an event that came before changes nothing', () => {
  const job = empty();
  const event = { sequence: 3, time_ms: 0, kind: 'note', data: { text: 'x' } };
  fold(job, event);
  fold(job, event);
  fold(job, { ...event, sequence: 2 });
  expect(job.items).toHaveLength(1);
});

test('long output keeps its end and says how much is hidden', () => {
  const job = play([
    { kind: 'call_started', call, data: { tool: 'shell', input: {} } },
    ...Array.from({ length: 20 }, (_, index) => ({ kind: 'call_output', call, data: { stream: 'stdout', text: `${index}`.padStart(32_000, '.') } })),
  ]);
  const item = callOf(job, 'step-1.1');
  expect(item?.hiddenBytes).toBe(640_000 - 256 * 1024);
  expect(item?.output[0]?.text.endsWith('19')).toBe(true);
});

test('a cell shows its best form, and an exception as text', () => {
  const job = play([
    { kind: 'call_started', call, data: { tool: 'python', input: {} } },
    { kind: 'call_display', call, data: { display: 'data', text: '<Figure>', data: { 'text/plain': '<Figure>', 'image/png': 'AAAA' } } },
    { kind: 'call_display', call, data: { display: 'error', text: 'E', error: { name: 'E', message: 'm', traceback: ['line 1', 'E: m'] } } },
  ]);
  expect(callOf(job, 'step-1.1')).toMatchObject({ rich: [{ type: 'image/png', data: 'AAAA' }], output: [{ stream: 'stderr', text: 'line 1\nE: m\n' }] });
});

test('a picture that a cell has shown is there once, and one that only the end tells of is there too', () => {
  const images = [{ bytes: 8788, digest: '938b'.repeat(16), height: 265, media_type: 'image/png', width: 512 }];
  const ended = { kind: 'call_ended', call, data: { status: 'succeeded', duration_ms: 5, result: { status: 'done', text: '[done, 1 pictures]', images } } };
  const started = { kind: 'call_started', call, data: { tool: 'python', input: {} } };
  const cell = play([started, { kind: 'call_display', call, data: { display: 'data', text: '<Figure>', data: { 'image/png': 'AAAA' } } }, ended]);
  expect(callOf(cell, 'step-1.1')?.rich.map((rich) => [rich.type, rich.data])).toEqual([['image/png', 'AAAA']]);
  const screen = play([started, ended]);
  expect(callOf(screen, 'step-1.1')?.rich).toEqual([{ type: 'image/png', digest: '938b'.repeat(16) }]);
  expect(screen.screenshots).toHaveLength(1);
});

test('the last screen is a screenshot of the desktop', () => {
  const job = play([{ kind: 'screen_captured', data: { screenshot: { digest: '938b'.repeat(16), media_type: 'image/png' } } }]);
  expect(job.screenshots).toMatchObject([{ rich: { type: 'image/png', digest: '938b'.repeat(16) }, isScreen: true }]);
  expect(job.items).toEqual([]);
});

test('a drawing is shown as one', () => {
  const job = play([
    { kind: 'call_started', call, data: { tool: 'python', input: {} } },
    { kind: 'call_display', call, data: { display: 'data', text: '<SVG>', data: { 'text/plain': '<SVG>', 'image/svg+xml': '<svg/>' } } },
  ]);
  expect(callOf(job, 'step-1.1')?.rich).toEqual([{ type: 'image/svg+xml', data: '<svg/>' }]);
});

test('an answer to a connection says which one', () => {
  const ask = { id: 'r1', kind: 'egress', text: 'may it?', egress: { host: 'api.example.org', port: 443, rule: '', code: '', reason: '' } };
  const done = play([{ kind: 'input_requested', data: ask }, { kind: 'input_answered', data: { id: 'r1', answer: { accept: false } } }]);
  expect(done.items.at(-1)).toMatchObject({ kind: 'person', text: 'Refused api.example.org:443' });
});

test('a question is open until it is answered', () => {
  const ask = { id: 'r1', kind: 'question', text: 'colour?' };
  const open = play([{ kind: 'input_requested', data: ask }]);
  expect(open.asks).toHaveLength(1);
  const done = play([{ kind: 'input_requested', data: ask }, { kind: 'input_answered', data: { id: 'r1', answer: { text: 'red' } } }]);
  expect(done.asks).toHaveLength(0);
  expect(done.items.at(-1)).toMatchObject({ kind: 'person', text: 'red' });
});

test('connections are one line each', () => {
  const line = { id: 7, host: 'example.org', port: 443, method: 'CONNECT', verdict: 'allowed', rule: 'open', reason: '' };
  const job = play([
    { kind: 'egress', data: { event: 'opened', ...line, bytes_up: 0, bytes_down: 0 } },
    { kind: 'egress', data: { event: 'closed', ...line, bytes_up: 5, bytes_down: 9 } },
  ]);
  expect(job.connections).toEqual([expect.objectContaining({ host: 'example.org', up: 5, down: 9, open: false })]);
});

test('what one answer says has keys of its own', () => {
  const parts = [{ reasoning: { text: 'hm' } }, { text: 'first' }, { text: 'second' }];
  const job = play([{ kind: 'model_answered', data: { turn: 1, answer: { parts, usage: { input: 3, cached_input: 4, output: 5 }, cost: 2_000_000_000 } } }]);
  expect(job.items.map((item) => item.kind)).toEqual(['thought', 'said', 'said']);
  expect(new Set(job.items.map((item) => item.key)).size).toBe(3);
  expect(job.spent).toMatchObject({ turns: 1, input: 7, output: 5, dollars: 2 });
});

test('calls stand below the point of the plan that they serve', () => {
  const items = (status: string) => ({ plan: { items: [{ text: 'look', status }, { text: 'do', status: status === 'done' ? 'in_progress' : 'pending' }] } });
  const job = play([
    { kind: 'plan_changed', data: items('in_progress') },
    { kind: 'call_started', call, data: { tool: 'shell', input: {} } },
    { kind: 'plan_changed', data: items('in_progress') },
    { kind: 'plan_changed', data: items('done') },
  ]);
  expect(job.items.map((item) => (item.kind === 'call' ? item.tool : item.text))).toEqual(['look', 'shell', 'do']);
});

test('a snapshot does not change with what comes later', () => {
  const job = play([{ kind: 'call_started', call, data: { tool: 'shell', input: {} } }]);
  const before = snapshot(job);
  fold(job, { sequence: 9, time_ms: 0, kind: 'call_output', call, data: { stream: 'stdout', text: 'later' } });
  expect(callOf(before, 'step-1.1')?.output).toEqual([]);
  expect(callOf(job, 'step-1.1')?.output).toHaveLength(1);
});

test('a picture that a cell shows and its result repeats is shown once', () => {
  const job = play([
    { kind: 'call_started', call, data: { tool: 'python', input: {} } },
    { kind: 'call_display', call, data: { display: 'data', text: '', data: { 'image/png': 'AAAA\n' } } },
    { kind: 'call_ended', call, data: { status: 'succeeded', duration_ms: 1, result: { images: [{ media_type: 'image/png', bytes: 'AAAA' }] } } },
  ]);
  expect(callOf(job, 'step-1.1')?.rich).toHaveLength(1);
  expect(job.screenshots).toHaveLength(1);
});

test('files are known as tools wrote and edited them', () => {
  const end = { status: 'succeeded', duration_ms: 1 };
  const job = play([
    { kind: 'call_started', call, data: { tool: 'write_file', input: { path: 'a.txt', content: 'one\ntwo\n' } } },
    { kind: 'call_ended', call, data: end },
    { kind: 'call_started', call: { id: 's2', attempt: 1 }, data: { tool: 'edit_file', input: { path: 'a.txt', old: 'two', new: 'three' } } },
    { kind: 'call_ended', call: { id: 's2', attempt: 1 }, data: end },
    { kind: 'call_started', call: { id: 's3', attempt: 1 }, data: { tool: 'write_file', input: { path: 'b.txt', content: 'x' } } },
    { kind: 'call_ended', call: { id: 's3', attempt: 1 }, data: { ...end, status: 'failed' } },
  ]);
  expect([...job.files]).toEqual([['a.txt', { content: 'one\nthree\n', size: 10, at: 4 }]]);
});

test('files that commands wrote are known as they were found', () => {
  const job = empty();
  const found = (sequence: number, data: object) => fold(job, { sequence, time_ms: 0, kind: 'files_changed', data });
  found(1, { whole: true, files: [{ path: 'a.txt', size: 3, content: 'one' }, { path: 'big.bin', size: 9_000_000 }] });
  found(2, { files: [{ path: 'a.txt', size: 3, content: 'two' }, { path: 'src/b.txt', size: 1, content: 'b' }] });
  expect(job.files.get('a.txt')?.content).toBe('two');
  expect(job.files.get('big.bin')).toEqual({ content: null, size: 9_000_000, at: 1 });
  found(3, { files: [{ path: 'a.txt', removed: true }] });
  expect([...job.files.keys()]).toEqual(['big.bin', 'src/b.txt']);
  found(4, { whole: true, files: [{ path: 'c.txt', size: 0, content: '' }] });
  expect([...job.files.keys()]).toEqual(['c.txt']);
});

test('what a file tool wrote is not undone by a look that began before', () => {
  const job = play([
    { kind: 'call_started', call, data: { tool: 'write_file', input: { path: 'a.txt', content: 'new' } } },
    { kind: 'call_ended', call, data: { status: 'succeeded', duration_ms: 1 } },
    { kind: 'files_changed', data: { whole: true, seen_after: 1, files: [{ path: 'a.txt', content: 'old' }, { path: 'b.txt', content: 'b' }] } },
  ]);
  expect([job.files.get('a.txt')?.content, job.files.get('b.txt')?.content]).toEqual(['new', 'b']);
});

test('the window of the model and what was folded are known, and what folding costs', () => {
  const summary = { range: { first: 'e3', last: 'e9' }, level: 1, text: 'It was looked around.', input_hash: 'x', prompt_version: 1 };
  const job = play([
    { kind: 'context_changed', data: { kind: 'window', model: 'm', budget_tokens: 6000, system: '', system_tokens: 1, tools: [], tools_tokens: 1 } },
    { kind: 'turn_started', data: { turn: 1, model: 'm', prompt_tokens: 1500 } },
    { kind: 'summary_created', data: { range: summary.range, usage: { input: 100, output: 20 }, cost: 500_000_000, summary } },
    { kind: 'summary_created', data: { range: summary.range, usage: { input: 7, output: 1 }, problem: 'it says nothing' } },
  ]);
  expect(job.spent).toMatchObject({ input: 107, output: 21, dollars: 0.5 });
  expect(job.window).toMatchObject({ prompt: 1500, most: 6000, asked: 2 });
  expect(job.folds).toEqual([{ key: '3', range: 'e3–e9', level: 1, text: 'It was looked around.' }]);
});

test('a new form of something that was shown takes its place', () => {
  const shown = (display: string, text: string, display_id?: string) => ({ kind: 'call_display', call, data: { display, text, data: { 'text/plain': text }, display_id } });
  const job = play([
    { kind: 'call_started', call, data: { tool: 'python', input: {} } },
    shown('data', '10 %', 'bar'), shown('data', 'between'), shown('update', '90 %', 'bar'), shown('update', '100 %', 'bar'),
  ]);
  expect(callOf(job, 'step-1.1')?.rich.map((rich) => rich.data)).toEqual(['100 %', 'between']);
});

test('work is counted while a job runs, and calls of the agent alone count for its budget', () => {
  const state = (time_ms: number, state: string) => ({ kind: 'state_changed', time_ms, data: { state } });
  const end = (id: string) => ({ kind: 'call_ended', call: { id, attempt: 1 }, data: { status: 'succeeded' } });
  const job = play([state(1000, 'running'), state(4000, 'paused'), state(9000, 'running'), end('turn-1.1'), end('exec-1')]);
  expect(job.spent).toMatchObject({ worked: 3000, workingSince: 9000, toolCalls: 1 });
});

test('who has taken over is known by the event of it', () => {
  const job = play([{ kind: 'taken_over', data: { by: 'a' } }, { kind: 'handed_back', data: { by: 'a' } }, { kind: 'taken_over', data: { by: 'b' } }]);
  expect([job.holder, job.holderSince]).toEqual(['b', 3]);
});

test('what people did is told with who it was', () => {
  const actor = { name: 'ada', key: '0193' };
  const job = play([
    { kind: 'call_started', call, actor, data: { tool: 'exec', input: { command: 'ls' } } },
    { kind: 'user_action', actor, data: { what: 'file_put', path: 'a.txt', bytes: 5, sha256: '00' } },
    { kind: 'user_action', actor, data: { what: 'file_deleted', path: 'b.txt', failed: 'there is none' } },
    { kind: 'user_action', actor, data: { what: 'something_new' } },
  ]);
  expect(callOf(job, 'step-1.1')?.by).toBe('ada');
  expect(job.items.slice(1).map((item) => (item.kind === 'call' ? '' : item.text))).toEqual([
    'ada uploaded a.txt (5 bytes)', 'ada deleted b.txt: failed, there is none', 'ada something new',
  ]);
});

test('what a job calls a digest is an address only where it is one', () => {
  for (const digest of ['../../../keys', 'A'.repeat(64), `${'0'.repeat(64)}/x`, 7, { a: 1 }, null]) {
    const job = play([
      { kind: 'call_started', call, data: { tool: 'python', input: {} } },
      { kind: 'call_display', call, data: { display: 'data', text: '', data: { 'image/png': { digest } } } },
      { kind: 'call_ended', call, data: { status: 'done', images: [{ digest, media_type: 'image/png' }], result: { screenshot: { digest } } } },
    ]);
    expect(callOf(job, 'step-1.1')?.rich.map((rich) => rich.digest)).toEqual([undefined]);
  }
});

test('what the sandbox is has no line of its own', () => {
  const job = play([
    { kind: 'agent_notified', data: { code: 'environment', text: 'What you work with' } },
    { kind: 'agent_notified', data: { code: 'handed_back', text: 'Ada gives it back' } },
  ]);
  expect(job.items).toMatchObject([{ kind: 'notice', text: 'Ada gives it back' }]);
});

test('that nobody answered is not said in the words of a person', () => {
  const job = play([
    { kind: 'input_requested', data: { id: 'r1', kind: 'command', text: 'words of the agent' } },
    { kind: 'input_answered', data: { id: 'r1', answer: null } },
  ]);
  expect(job.items).toMatchObject([{ kind: 'notice', text: 'No answer in time: the command was not allowed.' }]);
});

test('output of two streams in turn is a bounded number of parts', () => {
  const job = play([
    { kind: 'call_started', call, data: { tool: 'shell', input: {} } },
    ...Array.from({ length: 6000 }, (_, index) => ({ kind: 'call_output', call, data: { stream: index % 2 ? 'stdout' : 'stderr', text: 'x' } })),
  ]);
  const item = callOf(job, 'step-1.1');
  expect(item?.output.length).toBeLessThanOrEqual(2000);
  expect((item?.hiddenBytes ?? 0) + (item?.output ?? []).reduce((sum, part) => sum + part.text.length, 0)).toBe(6000);
  expect(item?.keptLength).toBe(item?.output.length);
});

test('what goes on from a branch does not change where it began', () => {
  const job = play([{ kind: 'call_started', call, data: { tool: 'shell', input: {} } }]);
  const kept = branch(job);
  fold(job, { sequence: 2, time_ms: 1, kind: 'call_started', call: { id: 'step-2', attempt: 1 }, data: { tool: 'shell', input: {} } });
  fold(job, { sequence: 3, time_ms: 1, kind: 'call_output', call, data: { stream: 'stdout', text: 'later' } });
  expect([kept.items.length, kept.calls.size, callOf(kept, 'step-1.1')?.output]).toEqual([1, 1, []]);
  fold(kept, { sequence: 2, time_ms: 1, kind: 'call_output', call, data: { stream: 'stdout', text: 'again' } });
  expect(callOf(kept, 'step-1.1')?.output).toEqual([{ stream: 'stdout', text: 'again' }]);
});

test('the room of a prompt is counted as its tokens are, and belongs to the last request', () => {
  const asked = (turn: number, prompt_tokens: number) => ({ kind: 'turn_started', data: { turn, model: 'm', prompt_tokens } });
  const job = play([
    { kind: 'context_changed', data: { kind: 'window', model: 'm', budget_tokens: 6000, factor: 1200 } },
    asked(1, 1500), { kind: 'context_changed', data: { kind: 'correction', factor: 1500 } },
  ]);
  expect(job.window).toMatchObject({ prompt: 1500, most: 5000, asked: 2 });
  fold(job, { sequence: 4, time_ms: 9, ...asked(2, 1600) } as LogEvent);
  expect(job.window).toMatchObject({ prompt: 1600, most: 4000, asked: 4 });
});

test('a screenshot of the desktop is told from other pictures', () => {
  const shown = (id: string, tool: string) => [
    { kind: 'call_started', call: { id, attempt: 1 }, data: { tool, input: {} } },
    { kind: 'call_ended', call: { id, attempt: 1 }, data: { status: 'succeeded', result: { images: [{ media_type: 'image/png', digest: 'ab'.repeat(32) }] } } },
  ];
  const job = play([...shown('step-1', 'gui'), ...shown('step-2', 'python')]);
  expect(job.screenshots.map((one) => one.isScreen)).toEqual([true, false]);
});

test('the result of an agent and whether there was a sandbox are known', () => {
  const job = play([{ kind: 'sandbox_ready', data: {} }, { kind: 'agent_finished', data: { outcome: 'failed', summary: 'It cannot be done.' } }]);
  expect([job.hasSandbox, job.result]).toEqual([true, { summary: 'It cannot be done.', isFailed: true }]);
  expect(empty().hasSandbox).toBe(false);
});
