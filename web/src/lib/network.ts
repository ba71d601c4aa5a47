// Connections grouped by host.

import type { Connection } from './folded';

export interface HostGroup {
  host: string;
  /** Newest first. */
  connections: Connection[];
  verdicts: Record<string, number>;
  open: number;
  up: number;
  down: number;
  /** The time of the newest connection. */
  time: number;
}

/** The name of the group of requests whose host could not be read. */
export const UNREADABLE = 'unreadable request';

/** Groups the connections by host; the host with the newest connection comes first. */
export function byHost(connections: Connection[]): HostGroup[] {
  const groups = new Map<string, HostGroup>();
  for (const connection of connections) {
    const host = connection.host || UNREADABLE;
    const group = groups.get(host) ?? { host, connections: [], verdicts: {}, open: 0, up: 0, down: 0, time: 0 };
    groups.set(host, group);
    group.connections.unshift(connection);
    group.verdicts[connection.verdict] = (group.verdicts[connection.verdict] ?? 0) + 1;
    group.open += connection.open ? 1 : 0;
    group.up += connection.up;
    group.down += connection.down;
    group.time = Math.max(group.time, connection.time);
  }
  return [...groups.values()].sort((a, b) => b.time - a.time);
}

export type NetworkRow = { kind: 'host'; key: string; group: HostGroup } | { kind: 'connection'; key: string; connection: Connection };

/** The rows to show: one per host, and below an open host its connections. */
export function rowsOf(groups: HostGroup[], open: ReadonlySet<string>): NetworkRow[] {
  return groups.flatMap((group): NetworkRow[] => {
    const head: NetworkRow = { kind: 'host', key: `host ${group.host}`, group };
    if (!open.has(group.host)) return [head];
    return [head, ...group.connections.map((connection): NetworkRow => ({ kind: 'connection', key: connection.key, connection }))];
  });
}
