// What a job serves lives on addresses of its own, so that its pages can never speak to the API.

import { post, type Schemas } from './api';
import { who } from './session.svelte';

const LASTS_S = 12 * 3600;

/** How a frame or a tab begins. What shows that one may come in is sent by a form: no address ever holds it. */
export interface Entrance {
  address: string;
  /** Where the form goes, and what it says; nothing where nothing has to be shown. */
  action: string;
  fields: Record<string, string> | null;
}

/** Whether a browser finds the addresses of jobs from here: the names below `localhost` are those of the machine it runs on; others
 * there are only where the operator has set a domain for jobs. */
export function isNear(host = location.hostname): boolean {
  return Boolean(who.session?.job_domain) || host === 'localhost' || host.endsWith('.localhost') || host === '[::1]' || /^127(\.\d+){3}$/.test(host);
}

/** What lets one in where the server asks for keys. */
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
