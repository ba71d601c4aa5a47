// The page's state of a job: what `fold` computes from the event log.

import type { CallItem, Rich } from './call-item';
import type { Change } from './changes';
import type { KnownFile } from './known';
import type { McpServer } from './mcp';

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
  /** Milliseconds of work until the job last waited, and the time since which it works now. */
  worked: number;
  workingSince: number | null;
}

export interface Budget {
  money_usd?: number | null;
  tokens?: number | null;
  turns?: number | null;
  tool_calls?: number | null;
  wall_s?: number | null;
}

/** The model's context window. All tokens are counted as the server counts them. */
export interface ModelWindow {
  /** The size of the last prompt, and the most that it could have been. */
  prompt: number;
  most: number;
  /** The event with which that prompt was sent; 0 before the first. */
  asked: number;
  /** The most by the provider's count, and what the provider counts for 1,000 tokens of the server. */
  budget: number;
  factor: number;
}

/** The limits of the sandbox; 0 if unknown. */
export interface SandboxLimits {
  cpus: number;
  memory: number;
  disk: number;
  processes: number;
}

/** The job's time limit and the time that counts against it. Waiting does not count. */
export interface WorkTime {
  /** 0 if unknown. */
  limit: number;
  startedAt: number | null;
  waited: number;
  waitingSince: number | null;
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
  window: ModelWindow;
  limits: SandboxLimits;
  clock: WorkTime;
  /** How long a connection waits for an approval, in milliseconds. */
  egressWait: number;
  /** Whether the job has had a sandbox. */
  hasSandbox: boolean;
  /** The agent's report at the end of its work. */
  result: { summary: string; isFailed: boolean } | null;
  /** The answer and reasoning that the model is streaming; not in the log yet. */
  saying: string;
  thinking: string;
  folds: { key: string; range: string; level: number; text: string }[];
  /** The MCP servers, by name. Replaced, never modified. */
  servers: Map<string, McpServer>;
  holder: string;
  /** The sequence number of the holder's takeover event. */
  holderSince: number;
  /** Whether the workspace starts from a cloned repository. */
  isCloned: boolean;
  /** Images that calls have shown, and the last screen; `isScreen` if the image is of the desktop or its browser. */
  screenshots: { sequence: number; time: number; rich: Rich; isScreen: boolean }[];
  /** Files of the workspace, as far as the log reveals them. */
  files: Map<string, KnownFile>;
  /** What the job has changed in its workspace, by path. */
  changes: Map<string, Change>;
  /** Whether the log has listed the whole workspace. */
  isListed: boolean;
  /** The commit at which the job's repository was cloned. */
  commit: string | null;
  artifact: boolean;
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
    spent: { turns: 0, calls: 0, input: 0, output: 0, dollars: 0, toolCalls: 0, worked: 0, workingSince: null },
    budget: {},
    model: '',
    window: { prompt: 0, most: 0, asked: 0, budget: 0, factor: 1000 },
    limits: { cpus: 0, memory: 0, disk: 0, processes: 0 },
    clock: { limit: 0, startedAt: null, waited: 0, waitingSince: null },
    egressWait: 0,
    hasSandbox: false,
    result: null,
    saying: '',
    thinking: '',
    folds: [],
    servers: new Map(),
    holder: '',
    holderSince: 0,
    isCloned: false,
    screenshots: [],
    files: new Map(),
    changes: new Map(),
    isListed: false,
    commit: null,
    artifact: false,
  };
}

/** A copy of the state for display, which further folding does not change. */
export function snapshot(job: Folded): Folded {
  return {
    ...job, items: job.items.slice(), connections: job.connections.slice(), screenshots: job.screenshots.slice(),
    spent: { ...job.spent }, window: { ...job.window }, clock: { ...job.clock },
  };
}

/** A copy of the state from which folding can continue later. */
export function branch(job: Folded): Folded {
  return { ...snapshot(job), calls: new Map(job.calls), byConnection: new Map(job.byConnection) };
}
