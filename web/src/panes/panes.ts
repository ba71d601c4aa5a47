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
  afterwards: boolean;
  /** Whether the pane is useless to read-only users. */
  isWork?: boolean;
  load: () => Promise<{ default: Component<PaneProps> }>;
}

export const PANES: Pane[] = [
  { name: 'desktop', title: 'Desktop', afterwards: true, load: () => import('./Desktop.svelte') },
  { name: 'terminal', title: 'Terminal', afterwards: false, isWork: true, load: () => import('./Terminal.svelte') },
  { name: 'files', title: 'Files', afterwards: true, load: () => import('./Files.svelte') },
  { name: 'notebook', title: 'Notebook', afterwards: false, isWork: true, load: () => import('./Notebook.svelte') },
  { name: 'preview', title: 'Preview', afterwards: false, isWork: true, load: () => import('./Preview.svelte') },
  { name: 'network', title: 'Network', afterwards: true, load: () => import('./Network.svelte') },
  { name: 'resources', title: 'Resources', afterwards: false, load: () => import('./Resources.svelte') },
  { name: 'context', title: 'Context', afterwards: true, load: () => import('./Context.svelte') },
];
