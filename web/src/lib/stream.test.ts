import { expect, test, vi } from 'vitest';
import { ApiError } from './api';
import { cut, follow, type Message } from './stream';

function all(pieces: string[]) {
  const heard: Message[] = [];
  let rest = '';
  for (const piece of pieces) rest = cut(rest + piece, (message) => heard.push(message));
  return { heard, rest };
}

test('messages are whole however the bytes are cut', () => {
  const text = 'retry: 1000\n\nid: 4\nevent: note\ndata: {"a":1}\n\n: still here\n\nevent: end\ndata: {}\n\n';
  const whole = all([text]).heard;
  expect(whole.map((message) => message.event)).toEqual(['message', 'note', 'message', 'end']);
  expect(whole[1]).toEqual({ event: 'note', data: '{"a":1}' });
  for (let place = 1; place < text.length; place += 1) expect(all([text.slice(0, place), text.slice(place)]).heard).toEqual(whole);
});

test('what is not whole yet waits', () => {
  expect(all(['event: note\ndata: {"a"']).heard).toEqual([]);
  expect(all(['event: note\ndata: {"a"']).rest).toBe('event: note\ndata: {"a"');
});

test('who hears no more gives the connection back', async () => {
  const cancelled = new Promise<void>((done) => {
    const body = new ReadableStream({ start: (pipe) => pipe.enqueue(new TextEncoder().encode('data: 1\n\n')), cancel: () => done() });
    vi.stubGlobal('fetch', async () => new Response(body));
  });
  for await (const message of follow('/x', new AbortController().signal)) {
    expect(message.data).toBe('1');
    break;
  }
  await cancelled;
  vi.unstubAllGlobals();
});

test('a refusal is told in the words of the server', async () => {
  vi.stubGlobal('fetch', async () => new Response(JSON.stringify({ code: 'forbidden', detail: 'not your job' }), { status: 403 }));
  const refused = await follow('/x', new AbortController().signal).next().catch((error: unknown) => error);
  expect(refused).toBeInstanceOf(ApiError);
  expect(refused).toMatchObject({ status: 403, message: 'not your job' });
  vi.unstubAllGlobals();
});
