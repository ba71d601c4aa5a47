// What a job serves has its own origin, so that its pages can never call the API.

import { post, type Schemas } from './api';
import { who } from './session.svelte';

const LASTS_S = 12 * 3600;

/** How a frame or tab is opened. A form posts the pass, so that no URL ever contains it. */
export interface Entrance {
  address: string;
  /** The form's target and fields; `null` if no pass is needed. */
  action: string;
  fields: Record<string, string> | null;
}

/**
 * Whether this browser can reach job origins: names below `localhost` only work on the server's machine; other names
 * exist only if the operator has configured a base domain for jobs.
 */
export function isNear(host = location.hostname): boolean {
  return Boolean(who.session?.job_domain) || host === 'localhost' || host.endsWith('.localhost') || host === '[::1]' || /^127(\.\d+){3}$/.test(host);
}

/** Requests a pass for a job's origin; empty if the server needs no keys. */
export async function passOf(id: string, what: string | number): Promise<string> {
  if (!who.session?.needs_key) return '';
  const view = what === 'jupyter' ? 'notebook' : String(what);
  const shared = await post<Schemas['ShareAnswer']>(`/v1/jobs/${id}/shares`, { view, for_s: LASTS_S, rights: 'use', this_login: true });
  return new URL(shared.url).pathname.split('/').at(-1) ?? '';
}

export function entranceOf(id: string, what: string | number, path: string, pass: string, takeover = ''): Entrance {
  const origin = originOf(id, what);
  const fields = pass || takeover ? { pass, takeover, to: `/${path}` } : null;
  return { address: `${origin}${path}`, action: `${origin}_caisson/enter`, fields };
}

export function originOf(id: string, what: string | number): string {
  const port = location.port ? `:${location.port}` : '';
  const isLoopback = ['localhost', '127.0.0.1', '[::1]'].includes(location.hostname);
  const domain = isLoopback ? 'localhost' : (who.session?.job_domain ?? 'localhost');
  return `${location.protocol}//${id}-${what}.${domain}${port}/`;
}
