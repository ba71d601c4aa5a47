// The current list of jobs, newest first: polls the newest page and the visible one, and loads older pages on scroll.

import { api, type JobSummary, type Schemas } from './api';

const PAGE = 100;
type Page = Schemas['JobListAnswer'];

/** Merges a page that was requested with `before` into the list; the page is authoritative for the range it covers. */
export function merged(jobs: JobSummary[], page: Page, before: string | null): JobSummary[] {
  const above = before === null ? [] : jobs.filter((job) => job.job_id >= before);
  const below = page.next ? jobs.filter((job) => job.job_id < page.next!) : [];
  return [...above, ...page.jobs, ...below];
}

export class JobList {
  jobs = $state.raw<JobSummary[]>([]);
  problem = $state('');
  /** Whether the newest page has been loaded once. */
  isLoaded = $state(false);
  /** Whether there may be older jobs that were not requested yet. */
  hasMore = $state(false);
  now = $state(Date.now());
  /** The first and the last visible row. */
  seen = { first: 0, last: 0 };
  #states = '';
  #search = '';
  #next: string | null = null;
  #turn = 0;
  #isBusy = false;
  #isAsking = false;

  /** Starts over with another filter. */
  restart(states: string, search: string): void {
    [this.#states, this.#search] = [states, search.trim()];
    this.#turn += 1;
    this.#next = null;
    this.#isBusy = this.#isAsking = false;
    this.seen = { first: 0, last: 0 };
    this.jobs = [];
    this.isLoaded = this.hasMore = false;
    void this.refresh();
  }

  #page(before: string | null): Promise<Page> {
    const parameters = new URLSearchParams({ limit: String(PAGE) });
    if (this.#states) parameters.set('state', this.#states);
    if (this.#search) parameters.set('search', this.#search);
    if (before) parameters.set('before', before);
    return api.jobs(parameters);
  }

  /** Reloads the newest page and the visible one. */
  async refresh(): Promise<void> {
    if (this.#isBusy) return;
    const mine = this.#turn;
    this.#isBusy = true;
    try {
      const page = await this.#page(null);
      if (mine !== this.#turn) return;
      this.jobs = merged(this.jobs, page, null);
      if (!this.isLoaded || !page.next) this.#goOnFrom(page.next ?? null);
      this.isLoaded = true;
      await this.#refreshSeen(page.jobs.length, mine);
      if (mine !== this.#turn) return;
      this.problem = '';
      this.now = Date.now();
      // The server searches a limited number of jobs per request; this also retries after a failure.
      if (this.jobs.length === 0 || this.seen.last >= this.jobs.length) void this.more();
    } catch (error) {
      if (mine === this.#turn) this.problem = `${(error as Error).message} This list may be out of date.`;
    } finally {
      if (mine === this.#turn) this.#isBusy = false;
    }
  }

  async #refreshSeen(fresh: number, mine: number): Promise<void> {
    if (this.seen.last <= fresh) return;
    const before = this.jobs[this.seen.first - 1]?.job_id;
    if (before === undefined) return;
    const page = await this.#page(before);
    if (mine !== this.#turn) return;
    this.jobs = merged(this.jobs, page, before);
    if (!page.next) this.#goOnFrom(null);
  }

  /** Loads older jobs until there are some to show. */
  async more(): Promise<void> {
    if (this.#isAsking) return;
    const mine = this.#turn;
    this.#isAsking = true;
    try {
      for (let isFound = false; this.#next !== null && !isFound;) {
        const before: string = this.#next;
        const page = await this.#page(before);
        if (mine !== this.#turn) return;
        isFound = page.jobs.length > 0;
        this.jobs = [...this.jobs.filter((job) => job.job_id >= before), ...page.jobs];
        this.#goOnFrom(page.next ?? null);
      }
    } catch (error) {
      if (mine === this.#turn) this.problem = (error as Error).message;
    } finally {
      if (mine === this.#turn) this.#isAsking = false;
    }
  }

  #goOnFrom(next: string | null): void {
    this.#next = next;
    this.hasMore = next !== null;
  }

  /** Removes a job that was deleted on this page. */
  drop(id: string): void {
    this.jobs = this.jobs.filter((job) => job.job_id !== id);
  }
}
