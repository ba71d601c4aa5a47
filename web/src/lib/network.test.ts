import { expect, test } from 'vitest';
import type { Connection } from './folded';
import { byHost, rowsOf, UNREADABLE } from './network';

function connection(id: number, host: string, verdict: string, rest: Partial<Connection> = {}): Connection {
  return { id, key: `${id}`, time: id, host, port: 443, method: 'CONNECT', verdict, rule: '', reason: '', remedy: '', up: 1, down: 2, open: false, ...rest };
}
const list = [
  connection(1, 'pypi.org', 'allowed'), connection(2, 'evil.example', 'refused'), connection(3, 'pypi.org', 'failed'),
  connection(4, 'pypi.org', 'allowed', { open: true, up: 0, down: 10 }), connection(5, '', 'refused'),
];

test('connections are counted and summed by host, the newest host first', () => {
  const groups = byHost(list);
  expect(groups.map((group) => group.host)).toEqual([UNREADABLE, 'pypi.org', 'evil.example']);
  expect(groups[1]).toMatchObject({ verdicts: { allowed: 2, failed: 1 }, open: 1, up: 2, down: 14, time: 4 });
  expect(groups[1]?.connections.map((one) => one.id)).toEqual([4, 3, 1]);
});

test('an open host shows its connections below it', () => {
  const rows = rowsOf(byHost(list), new Set(['pypi.org']));
  expect(rows.map((row) => row.key)).toEqual([`host ${UNREADABLE}`, 'host pypi.org', '4', '3', '1', 'host evil.example']);
});
