// A job as a template: its input in the form of a request for a new job. Server defaults are left out, so that the
// new job gets the current ones.

import type { Schemas } from './api';

/** Fields that only jobs with a task have. */
export const OF_AGENT = ['model', 'effort', 'acceptance', 'approve_plan', 'approval', 'commands', 'budget', 'mcp'];

export interface Template {
  task: string;
  steps: unknown[] | null;
  git: { url: string; revision?: string } | null;
  options: Record<string, unknown>;
}

const seconds = (time: any): number | undefined => (time && typeof time === 'object' ? (time.secs ?? 0) + (time.nanos ?? 0) / 1e9 : undefined);
const isSame = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);
const isThere = (value: unknown) => value !== undefined && value !== null && value !== false && !(typeof value === 'object' && Object.keys(value as object).length === 0);

/** The default screen size of a desktop. */
const SCREEN = { width: 1280, height: 800 };

function desktopOf(desktop: any): Record<string, unknown> {
  const asked: Record<string, unknown> = {};
  for (const side of ['width', 'height'] as const) if (desktop?.[side] && desktop[side] !== SCREEN[side]) asked[side] = desktop[side];
  if (desktop?.recording) asked.record = desktop.recording;
  return asked;
}

/** An MCP server of the configuration is requested by name; a job's own one as it was written. */
function serverOf(choice: any): unknown {
  const own = choice?.own;
  if (!own) return true;
  return Object.fromEntries(Object.entries({
    command: own.reach?.stdio?.command, environment: own.reach?.stdio?.environment, url: own.reach?.http?.url, tools: own.tools,
    start_timeout_s: seconds(own.start_timeout), call_timeout_s: seconds(own.call_timeout),
  }).filter(([, value]) => isThere(value)));
}

/** `spec` is the job spec from the job's first event. */
export function templateOf(spec: any, defaults: Schemas['DefaultsView'] | null): Template {
  const work = spec?.work ?? {};
  const agent = spec?.agent ?? {};
  const limits: Record<string, number> = {};
  for (const [name, limit] of Object.entries<any>(spec?.limits ?? {})) {
    if (limit?.required === undefined) continue;
    if (name === 'cpu_millis') limits.cpus = limit.required / 1000;
    else limits[name] = limit.required;
  }
  const wall = seconds(spec?.wall_clock);
  if (wall !== undefined && wall !== defaults?.wall_clock_s) limits.wall_clock_s = wall;
  const wait = seconds(spec?.egress_settings?.wait);
  const budget = Object.fromEntries(Object.entries<any>(agent.budget ?? {}).filter(([name, most]) => most !== null && most !== (defaults?.budget as Record<string, unknown> | undefined)?.[name]));
  const secrets = Object.fromEntries(Object.entries<any>(spec?.egress_settings?.secrets ?? {}).map(([name, secret]) => [name, { hosts: secret.hosts }]));
  const all: Record<string, unknown> = {
    name: spec?.name,
    image: spec?.image === 'host' ? 'host' : spec?.image?.named,
    isolation: !defaults || isSame(spec?.isolation, defaults.isolation) ? undefined : spec?.isolation,
    desktop: desktopOf(spec?.desktop),
    priority: spec?.priority || undefined,
    limits,
    egress: isSame(spec?.egress, defaults?.egress) ? undefined : spec?.egress,
    egress_wait_s: wait || undefined,
    network: spec?.egress_settings?.allowance,
    secrets,
    environment: spec?.environment,
    labels: spec?.labels,
    on_loss: spec?.on_loss === 'fail' ? 'fail' : undefined,
    on_kernel_loss: spec?.on_kernel_loss === 'replay' ? 'replay' : undefined,
  };
  const asked: Record<string, unknown> = {
    model: agent.model,
    effort: agent.effort,
    acceptance: agent.acceptance,
    approve_plan: agent.approve_plan,
    approval: agent.approval === 'ask' ? 'ask' : undefined,
    // With `ask`, the default rules apply by themselves.
    commands: agent.approval === 'ask' ? undefined : agent.commands,
    budget,
    mcp: Object.fromEntries(Object.entries<any>(spec?.mcp ?? {}).map(([name, choice]) => [name, serverOf(choice)])),
  };
  const isTask = work.task !== undefined;
  return {
    task: typeof work.task === 'string' ? work.task : (work.task?.text ?? ''),
    steps: work.steps ?? null,
    git: spec?.git ?? null,
    options: Object.fromEntries(Object.entries({ ...all, ...(isTask ? asked : {}) }).filter(([, value]) => isThere(value))),
  };
}
