// The current view, from the part of the URL after `#`, so that every view can be bookmarked and shared.

export type Route =
  | { view: 'start'; mode: 'task' | 'steps' }
  | { view: 'jobs'; states: string; search: string }
  | { view: 'job'; id: string; panes: string[]; at: number | null; file: string | null }
  | { view: 'shared'; id: string; pane: string }
  | { view: 'admin' }
  | { view: 'missing' };

export const MOST_PANES = 3;
/** Browsers reject more than a few hundred changes of the URL per minute. */
const WRITE_AFTER_MS = 250;

export function parse(hash: string): Route {
  const [path = '', query = ''] = hash.replace(/^#\/?/, '').split('?');
  const parts = path.split('/').filter(Boolean);
  const asked = new URLSearchParams(query);
  const at = Number(asked.get('at') ?? Number.NaN);
  if (parts[0] === 'jobs' && parts[1] && parts.length <= 3) {
    const panes = [...new Set((parts[2] ?? '').split(',').filter(Boolean))].slice(0, MOST_PANES);
    return { view: 'job', id: parts[1], panes, at: Number.isInteger(at) && at > 0 ? at : null, file: asked.get('file') };
  }
  if (parts[0] === 'jobs' && parts.length === 1) return { view: 'jobs', states: asked.get('state') ?? '', search: asked.get('search') ?? '' };
  if (parts[0] === 'shared' && parts[1] && parts.length <= 3) return { view: 'shared', id: parts[1], pane: parts[2] ?? '' };
  if (parts.length > 1) return { view: 'missing' };
  if (parts[0] === 'admin') return { view: 'admin' };
  if (parts[0] === 'steps') return { view: 'start', mode: 'steps' };
  return parts.length === 0 ? { view: 'start', mode: 'task' } : { view: 'missing' };
}

class Router {
  route = $state.raw<Route>(parse(location.hash));
  /** The hash from which `route` was parsed. */
  #parsed = location.hash;
  #timer: number | undefined;

  constructor() {
    addEventListener('hashchange', () => this.update());
  }

  /** Parses the current hash unless that has already happened. */
  update(): void {
    clearTimeout(this.#timer);
    if (location.hash === this.#parsed) return;
    this.#parsed = location.hash;
    const before = this.route;
    this.route = parse(location.hash);
    // Another view starts at its top; another pane of the same job does not move the focus.
    const isSame = before.view === 'job' && this.route.view === 'job' && before.id === this.route.id;
    if (!isSame) document.getElementById('main')?.focus({ preventScroll: true });
  }

  /** Navigates without a history entry, for a moved slider or a typed character. */
  replace(hash: string): void {
    this.route = parse(hash);
    this.#parsed = hash;
    clearTimeout(this.#timer);
    const from = location.hash;
    this.#timer = window.setTimeout(() => {
      // Does not override a navigation since then, even if its event has not fired yet.
      if (location.hash === from) history.replaceState(null, '', hash);
    }, WRITE_AFTER_MS);
  }
}

export const router = new Router();

export const links = {
  start: '#/',
  steps: '#/steps',
  jobs: '#/jobs',
  admin: '#/admin',
  job: (id: string, panes: string | string[] = [], at: number | null = null) => {
    const names = [panes].flat().filter(Boolean).slice(0, MOST_PANES).join(',');
    return `#/jobs/${id}${names ? `/${names}` : ''}${at === null ? '' : `?at=${at}`}`;
  },
  /** A file in the files pane. */
  file: (id: string, path: string) => `#/jobs/${id}/files?${new URLSearchParams({ file: path })}`,
  found: (states: string, search: string) => {
    const asked = new URLSearchParams({ ...(states && { state: states }), ...(search && { search }) }).toString();
    return asked ? `#/jobs?${asked}` : '#/jobs';
  },
};

export function go(hash: string): void {
  location.hash = hash;
  // The browser fires `hashchange` in a later task; a key pressed before that must already act on the new view.
  router.update();
}
