// The panes beside the timeline. Each is loaded when it is opened.

import type { Component } from 'svelte';
import type { Folded } from '../lib/fold';

export interface PaneProps {
  id: string;
  /** The job's current state, or an earlier one in a replay. */
  view: Folded;
  over: boolean;
  /** Whether `view` is an earlier state. */
  isPast: boolean;
}

interface Pane {
  name: string;
  title: string;
  /** Whether the pane has something to show after the job has ended. */
  afterwards: (view: Folded) => boolean;
  /** Whether the pane is useless to read-only users. */
  isWork?: boolean;
  /** Whether only jobs with an agent have it. */
  isOfAgent?: boolean;
  load: () => Promise<{ default: Component<PaneProps> }>;
}

const never = () => false;
const always = () => true;

export const PANES: Pane[] = [
  { name: 'desktop', title: 'Desktop', afterwards: (view) => view.screenshots.some((one) => one.isScreen), load: () => import('./Desktop.svelte') },
  { name: 'terminal', title: 'Terminal', afterwards: never, isWork: true, load: () => import('./Terminal.svelte') },
  { name: 'files', title: 'Files', afterwards: always, load: () => import('./Files.svelte') },
  { name: 'notebook', title: 'Notebook', afterwards: never, isWork: true, load: () => import('./Notebook.svelte') },
  { name: 'preview', title: 'Preview', afterwards: never, isWork: true, load: () => import('./Preview.svelte') },
  { name: 'network', title: 'Network', afterwards: always, load: () => import('./Network.svelte') },
  { name: 'resources', title: 'Resources', afterwards: always, load: () => import('./Resources.svelte') },
  { name: 'context', title: 'Context', afterwards: always, isOfAgent: true, load: () => import('./Context.svelte') },
];

/** The panes that have something to show. Without a sandbox there is nothing but the files of a draft. */
export function panesOf(view: Folded, over: boolean, isTask: boolean, mayWork: boolean): Pane[] {
  if (!view.hasSandbox) return PANES.filter((pane) => pane.name === 'files' && view.state === 'draft' && view.last > 0);
  return PANES.filter((pane) => (!over || pane.afterwards(view)) && (mayWork || !pane.isWork) && (isTask || !pane.isOfAgent));
}
