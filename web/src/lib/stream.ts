// Server-sent events over fetch. Unlike an EventSource it takes every kind of event, and its reader decides when to connect again.

import { failure } from './api';

export interface Message {
  event: string;
  data: string;
}

/** The longest silence: the server says something at least every 15 seconds. */
const SILENCE_MS = 45_000;

/** Cuts a text into messages; gives back what is not whole yet. */
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

/** Everything that the server says until it ends the answer. Throws where there is none, or where it is silent for too long. */
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
    // A browser has six connections to a server: who hears no more gives this one back.
    void reader?.cancel().catch(() => undefined);
  }
}
