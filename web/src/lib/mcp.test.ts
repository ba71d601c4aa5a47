import { expect, test } from 'vitest';
import { empty, fold, type LogEvent } from './fold';
import { splitTool, stateOf, type McpServer } from './mcp';

const changed = (sequence: number, data: object) => ({ sequence, time_ms: sequence, kind: 'mcp_changed', data }) as LogEvent;

test('each server is known with its state, its tools and why others are left out', () => {
  const job = empty();
  fold(job, changed(1, { server: 'hub', state: 'starting', process: 1 }));
  fold(job, changed(2, { server: 'box', state: 'given_up', process: 6, reason: 'its process ended with exit code 1' }));
  expect([...job.servers.values()].map((server) => stateOf(server).word)).toEqual(['starting', 'given up']);
  const before = job.servers;
  fold(job, changed(3, { server: 'hub', state: 'connected', process: 1, tools: ['hub__search', 'hub__get__it'], left_out: ['the tool `x`: no'] }));
  expect(job.servers.get('hub')).toEqual({ name: 'hub', state: 'connected', process: 1, tools: ['search', 'get__it'], leftOut: ['the tool `x`: no'], reason: '' });
  expect(before.get('hub')?.state).toBe('starting');
});

test('a server that is started again keeps the tools that it had', () => {
  const job = empty();
  fold(job, changed(1, { server: 'hub', state: 'connected', process: 1, tools: ['hub__search'] }));
  fold(job, changed(2, { server: 'hub', state: 'failed', process: 1, reason: 'it has ended' }));
  const hub = () => job.servers.get('hub') as McpServer;
  expect([hub().tools, hub().reason, stateOf(hub())]).toEqual([['search'], 'it has ended', { word: 'restarting', tone: 'wait' }]);
  fold(job, changed(3, { server: 'hub', state: 'starting', process: 2 }));
  expect([stateOf(hub()).word, hub().reason]).toEqual(['restarting', '']);
});

test('the name of a tool says its server', () => {
  expect(splitTool('hub__get__it')).toEqual({ server: 'hub', tool: 'get__it' });
  for (const name of ['shell', 'read_file', '__x', 'hub__']) expect(splitTool(name)).toBeNull();
});
