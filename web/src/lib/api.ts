// The API as this page uses it. Types come from the OpenAPI document.

import type { components } from './openapi';

export type Schemas = components['schemas'];
export type Job = Schemas['JobAnswer'];
export type JobSummary = Schemas['JobSummary'];
export type Accepted = Schemas['AcceptedAnswer'];
export type NewJob = Schemas['NewJob'];
export type FileItem = Schemas['FileItem'];
export type Problem = Schemas['Problem'];

/** An error in the server's words. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** A callback for 401 responses. */
export const unauthorized = { tell: (): void => undefined };

/** The message of a problem, which begins with the invalid field unless it names the field itself. */
function messageOf({ detail, title, field }: Partial<Problem>): string | undefined {
  if (!detail || !field) return detail ?? title;
  const name = field.slice(field.lastIndexOf('.') + 1);
  return [field, name].some((part) => detail.includes(`\`${part}\``)) ? detail : `${field}: ${detail}`;
}

export async function failure(response: Response): Promise<ApiError> {
  const text = await response.text();
  try {
    const problem = JSON.parse(text) as Partial<Problem>;
    return new ApiError(response.status, problem.code ?? 'error', messageOf(problem) ?? text);
  } catch {
    return new ApiError(response.status, 'error', text || response.statusText);
  }
}

/** Timeout for a whole response; uploads of files have none. */
const PATIENCE_MS = 60_000;
/** Timeout for polling requests: with a longer one the page would show outdated data. */
const SHORT_PATIENCE_MS = 10_000;

interface Manner {
  /** Timeout of a GET request. */
  patience?: number;
  /** A status that counts as success besides 2xx. */
  takes?: number;
  /** Aborts the request. */
  signal?: AbortSignal;
}

const DISCARD_TRIES = 40;
const DISCARD_PAUSE_MS = 250;

/** An upload may take any time; a GET or a short request has a timeout. */
function signalOf(method: string, isShort: boolean, manner: Manner): AbortSignal | null {
  if (method !== 'GET' && !isShort) return null;
  const patience = AbortSignal.timeout(manner.patience ?? PATIENCE_MS);
  return manner.signal ? AbortSignal.any([patience, manner.signal]) : patience;
}

export async function request(method: string, path: string, body?: BodyInit | object, manner: Manner = {}): Promise<Response> {
  const isPlain = body !== undefined && !(body instanceof Blob) && !(body instanceof FormData) && typeof body !== 'string';
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      signal: signalOf(method, isPlain || body === undefined, manner),
      credentials: 'same-origin',
      headers: isPlain ? { 'content-type': 'application/json' } : {},
      body: isPlain ? JSON.stringify(body) : (body as BodyInit | undefined),
    });
  } catch {
    const doubt = method === 'GET' ? '' : ' It may have processed the request all the same.';
    throw new ApiError(0, 'offline', `The server does not answer.${doubt}`);
  }
  if (!response.ok && response.status !== manner.takes) {
    const error = await failure(response);
    if (error.status === 401) unauthorized.tell();
    throw error;
  }
  return response;
}

export async function get<T>(path: string, manner: Manner = {}): Promise<T> {
  const response = await request('GET', path, undefined, manner);
  try {
    return await (response.json() as Promise<T>);
  } catch {
    throw new ApiError(0, 'offline', 'The connection broke while the server was answering.');
  }
}

export async function post<T>(path: string, body: object = {}): Promise<T> {
  const response = await request('POST', path, body);
  const text = await response.text();
  return (text ? JSON.parse(text) : undefined) as T;
}

export async function remove(path: string): Promise<void> {
  await request('DELETE', path);
}

/** Deletes a draft that will not be started. Cancelling is asynchronous, so deleting may have to be retried. */
async function discard(id: string): Promise<void> {
  await post(`/v1/jobs/${id}/cancel`);
  for (let turn = 0; ; turn += 1) {
    try {
      return await remove(`/v1/jobs/${id}`);
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 409) || turn === DISCARD_TRIES) throw error;
      await new Promise((done) => setTimeout(done, DISCARD_PAUSE_MS));
    }
  }
}

export const api = {
  jobs: (query: URLSearchParams) => get<Schemas['JobListAnswer']>(`/v1/jobs?${query}`, { patience: SHORT_PATIENCE_MS }),
  job: (id: string) => get<Job>(`/v1/jobs/${id}`),
  submit: (job: object) => post<Accepted>('/v1/jobs', job),
  demo: () => post<Accepted>('/v1/demo'),
  start: (id: string) => post<Accepted>(`/v1/jobs/${id}/start`),
  cancel: (id: string) => post<Job>(`/v1/jobs/${id}/cancel`),
  retry: (id: string) => post<Accepted>(`/v1/jobs/${id}/retry`),
  pause: (id: string) => post<Job>(`/v1/jobs/${id}/pause`),
  resume: (id: string, body: object = {}) => post<Job>(`/v1/jobs/${id}/resume`, body),
  extend: (id: string, seconds: number) => post<Job>(`/v1/jobs/${id}/extend`, { seconds }),
  message: (id: string, text: string) => post<unknown>(`/v1/jobs/${id}/message`, { text }),
  answer: (id: string, question: string, answer: object) => post<unknown>(`/v1/jobs/${id}/requests/${question}`, answer),
  remove: (id: string) => remove(`/v1/jobs/${id}`),
  files: (id: string, path: string) => get<Schemas['FileListing']>(path === '' ? `/v1/jobs/${id}/files` : filePath(id, path)),
  discard,
  /** A server that is not ready reports the reason in the same form. */
  ready: () => get<Schemas['ReadyState']>('/readyz', { patience: SHORT_PATIENCE_MS, takes: 503 }),
  file: (id: string, path: string) => request('GET', filePath(id, path)),
  save: (id: string, path: string, content: BodyInit) => request('PUT', filePath(id, path), content),
  ports: (id: string) => get<{ ports: { port: number }[] }>(`/v1/jobs/${id}/ports`, { patience: SHORT_PATIENCE_MS }),
  stats: (id: string) => get<Schemas['SandboxStats']>(`/v1/jobs/${id}/stats`, { patience: SHORT_PATIENCE_MS }),
  statsHistory: (id: string) => get<Schemas['StatsHistory']>(`/v1/jobs/${id}/stats/history`, { patience: SHORT_PATIENCE_MS }),
};

export function filePath(id: string, path: string): string {
  return `/v1/jobs/${id}/files/${path.split('/').map(encodeURIComponent).join('/')}`;
}

export function socketUrl(path: string): string {
  return `${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}${path}`;
}
