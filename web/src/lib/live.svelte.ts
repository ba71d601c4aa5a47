// A live job: streams its events, resumes by sequence number after every disconnect, and folds them as they arrive.

import { api, get, type Job } from './api';
import { branch, empty, fold, snapshot, type Folded, type LogEvent } from './fold';
import { follow } from './stream';

/** A single event is shown at once; bursts are shown at most this often, so that they do not block the page. */
const SHOW_EVERY_MS = 40;
const PAGE = 1000;
/** Status codes that make a retry useless: a bad URL, no permission, no such job. */
const FINAL = [400, 403, 404, 410];
const FIRST_PAUSE_MS = 500;
const MOST_PAUSE_MS = 5000;
/** A hidden page closes its connection after this time, because a browser opens only six for all its tabs. */
const HIDDEN_MS = 5000;
/** How often a hidden page still polls, so that its title can show that the job waits for input. */
const GLANCE_MS = 15_000;
/** In a replay, a snapshot is kept after every this many events. */
const SAVE_EVERY = 2000;

export function isOver(state: string): boolean {
  return state === 'complete' || state === 'failed' || state === 'cancelled';
}

export class LiveJob {
  readonly id: string;
  /** The folded state; replaced as a whole when there is something new to show. */
  view = $state.raw<Folded>(empty());
  job = $state.raw<Job | null>(null);
  problem = $state('');
  /** `asleep` while the page is hidden; `gone` if the server will never show this job (`isMissing`: it is unknown). */
  connection = $state<'connecting' | 'live' | 'lost' | 'over' | 'asleep' | 'gone'>('connecting');
  isMissing = $state(false);
  /** When `job` was requested. */
  asked = $state(Date.now());
  /** When the last message arrived. */
  heard = $state(Date.now());
  events: LogEvent[] = [];
  #folded = empty();
  #timer: number | undefined;
  #shown = 0;
  #retry: number | undefined;
  #pause = FIRST_PAUSE_MS;
  #end = new AbortController();
  /** Aborts only the current connection. */
  #nap = new AbortController();
  /** The number of requests for the job, and the request whose response is shown. */
  #asks = 0;
  #answered = 0;
  #hidden: number | undefined;
  #glance: number | undefined;
  #past = { folded: empty(), view: empty(), next: 0, sequence: 0 };
  /** Snapshots along the way, so that a step back does not replay from the start. */
  #saved: { folded: Folded; next: number }[] = [];

  constructor(id: string) {
    this.id = id;
    document.addEventListener('visibilitychange', this.#seen);
    this.#seen();
    void this.#run();
  }

  #seen = (): void => {
    clearTimeout(this.#hidden);
    clearInterval(this.#glance);
    if (document.visibilityState === 'hidden') this.#hidden = window.setTimeout(() => this.#sleep(), HIDDEN_MS);
    else if (this.connection === 'asleep') void this.#run();
  };

  #sleep(): void {
    if (this.connection === 'over' || this.connection === 'gone') return;
    this.connection = 'asleep';
    clearTimeout(this.#retry);
    this.#nap.abort();
    this.#glance = window.setInterval(() => void this.#lookOnce(), GLANCE_MS);
  }

  /** Loads what has happened meanwhile, without keeping a connection open. */
  async #lookOnce(): Promise<void> {
    await this.#catchUp(this.#nap.signal).catch(() => undefined);
    if (isOver(this.#folded.state)) clearInterval(this.#glance);
  }

  async #run(): Promise<void> {
    this.#nap = new AbortController();
    const nap = this.#nap.signal;
    if (this.connection === 'asleep') this.connection = 'connecting';
    try {
      await this.#catchUp(nap);
      await this.#listen(nap);
      this.#show();
      if (!isOver(this.#folded.state)) throw new Error('Connection lost.');
      this.connection = 'over';
      await this.refresh();
    } catch (error) {
      if (this.#end.signal.aborted || nap.aborted) return;
      this.problem = error instanceof Error ? error.message : String(error);
      const { status } = error as { status?: number };
      this.isMissing = status === 404;
      const isGone = status !== undefined && FINAL.includes(status);
      this.connection = isGone ? 'gone' : 'lost';
      if (isGone) return;
      this.#retry = window.setTimeout(() => void this.#run(), this.#pause);
      this.#pause = Math.min(this.#pause * 2, MOST_PAUSE_MS);
    }
  }

  /** Reloads the job and ignores a response that a newer one has overtaken. */
  async refresh(): Promise<void> {
    this.#asks += 1;
    const mine = this.#asks;
    const job = await api.job(this.id);
    if (mine < this.#answered) return;
    this.#answered = mine;
    this.asked = Date.now();
    this.job = job;
    this.problem = '';
  }

  /** Loads past events page by page, then the job's status. */
  async #catchUp(nap: AbortSignal): Promise<void> {
    // On the first load, shows the job before its possibly long history has arrived.
    if (this.job === null) await this.refresh();
    for (;;) {
      const page = await get<{ events: LogEvent[] }>(`/v1/jobs/${this.id}/events?format=json&after=${this.#folded.last}&limit=${PAGE}`);
      page.events.forEach((event) => this.#take(event));
      this.#show();
      if (page.events.length < PAGE || this.#end.signal.aborted || nap.aborted) break;
    }
    await this.refresh();
  }

  /** Streams events until the job has ended or the connection breaks. */
  async #listen(nap: AbortSignal): Promise<void> {
    const address = `/v1/jobs/${this.id}/events?deltas=true&after=${this.#folded.last}`;
    for await (const message of follow(address, AbortSignal.any([this.#end.signal, nap]))) {
      this.heard = Date.now();
      this.connection = 'live';
      this.#pause = FIRST_PAUSE_MS;
      if (message.event === 'end') return;
      if (message.event === 'problem') throw new Error((JSON.parse(message.data) as { detail?: string }).detail ?? 'The server cannot continue the stream.');
      if (message.data === '') continue;
      if (message.event === 'delta') this.#hear(JSON.parse(message.data));
      else {
        const event = JSON.parse(message.data) as LogEvent;
        this.#take(event);
        if (event.kind === 'state_changed' || event.kind === 'artifact_stored') void this.refresh().catch(() => undefined);
      }
      this.#timer ??= window.setTimeout(() => this.#show(), Math.max(0, this.#shown + SHOW_EVERY_MS - performance.now()));
    }
  }

  #take(event: LogEvent): void {
    if (event.sequence <= this.#folded.last) return;
    this.events.push(event);
    fold(this.#folded, event);
  }

  /** A delta of the model's current answer, which is in the log only once it is complete. */
  #hear(delta: { text?: string; reasoning?: string; restarted?: boolean }): void {
    const folded = this.#folded;
    if (delta.restarted) folded.saying = folded.thinking = '';
    folded.saying += delta.text ?? '';
    folded.thinking += delta.reasoning ?? '';
  }

  #show(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#shown = performance.now();
    this.view = snapshot(this.#folded);
  }

  /** The job as it was after this event; returns the same object while nothing before that event is new. */
  at(sequence: number): Folded {
    let past = this.#past;
    if (sequence < past.sequence) {
      const saved = this.#saved.findLast((one) => one.folded.last <= sequence);
      past = this.#past = { folded: saved ? branch(saved.folded) : empty(), view: empty(), next: saved?.next ?? 0, sequence: 0 };
      past.view = snapshot(past.folded);
    }
    const before = past.next;
    for (let event = this.events[past.next]; event && event.sequence <= sequence; event = this.events[past.next]) {
      fold(past.folded, event);
      past.next += 1;
      if (past.next % SAVE_EVERY === 0 && past.next > (this.#saved.at(-1)?.next ?? 0)) this.#saved.push({ folded: branch(past.folded), next: past.next });
    }
    past.sequence = sequence;
    if (past.next !== before) past.view = snapshot(past.folded);
    return past.view;
  }

  close(): void {
    this.#end.abort();
    document.removeEventListener('visibilitychange', this.#seen);
    clearTimeout(this.#hidden);
    clearInterval(this.#glance);
    clearTimeout(this.#retry);
    clearTimeout(this.#timer);
  }
}
