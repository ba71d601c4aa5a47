// Server-sent events over fetch. Unlike EventSource it delivers every event type, and the caller decides when to
// reconnect.

import { failure } from './api';

export interface Message {
  event: string;
  data: string;
}

/** The longest allowed silence; the server sends something at least every 15 seconds. */
const SILENCE_MS = 45_000;

/** Splits a text into messages and returns the incomplete rest. */
export function cut(text: string, take: (message: Message) => void): string {
  const parts = text.split('\n\n');
  const rest = parts.pop() ?? '';
  for (const part of parts) {
    let event = 'message';
    const data: string[] = [];
    for (const line of part.split('\n')) {
      if (line.startsWith('event:')) event = line.slice(6).trim();
      else if (line.startsWith('data:')) data.push(line.slice(5).replace(/^ /, ''));
    }
    take({ event, data: data.join('\n') });
  }
  return rest;
}

/** Yields messages until the server ends the response. Throws if the request fails or the server is silent too long. */
export async function* follow(path: string, end: AbortSignal): AsyncGenerator<Message> {
  const silence = new AbortController();
  const signal = AbortSignal.any([end, silence.signal]);
  let timer = setTimeout(() => silence.abort(), SILENCE_MS);
  let reader: ReadableStreamDefaultReader<string> | undefined;
  try {
    const response = await fetch(path, { headers: { accept: 'text/event-stream' }, credentials: 'same-origin', signal });
    if (!response.ok || !response.body) throw await failure(response);
    reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
      const messages: Message[] = [];
      rest = cut(rest + value, (message) => messages.push(message));
      yield* messages;
    }
  } finally {
    clearTimeout(timer);
    // A browser opens only six connections to a server, so this one is released.
    void reader?.cancel().catch(() => undefined);
  }
}
