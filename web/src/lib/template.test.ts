import { expect, test } from 'vitest';
import { templateOf } from './template';

const defaults = { wall_clock_s: 3600, egress: 'packages', budget: { turns: 200 } } as never;

test('a template has what the job was given and not what holds anyway', () => {
  const spec = {
    work: { task: 'colour it' }, name: 'blue', image: { named: 'default' }, priority: 0, wall_clock: { secs: 3600, nanos: 0 },
    limits: { memory_mib: { required: 512 }, cpu_millis: { required: 1500 }, pids: { default: 1024 } },
    egress: { allow: ['example.org'] }, egress_settings: { allowance: { bytes: 5 }, wait: { secs: 0, nanos: 0 }, secrets: { KEY: { placeholder: 'x', hosts: ['example.org'] } } },
    environment: { MODE: 'dark' }, labels: {}, on_loss: 'retry', git: { url: 'https://example.org/a.git' },
    agent: { model: 'ollama/qwen3', approve_plan: true, approval: 'ask', commands: { rules: [1] }, budget: { turns: 200, money_usd: 3 } },
  };
  expect(templateOf(spec, defaults)).toEqual({
    task: 'colour it', steps: null, git: { url: 'https://example.org/a.git' },
    options: {
      name: 'blue', image: 'default', limits: { memory_mib: 512, cpus: 1.5 }, egress: { allow: ['example.org'] }, network: { bytes: 5 },
      secrets: { KEY: { hosts: ['example.org'] } }, environment: { MODE: 'dark' }, model: 'ollama/qwen3', approve_plan: true, approval: 'ask', budget: { money_usd: 3 },
    },
  });
});

test('a template has the isolation, the screen and the MCP servers that were asked for', () => {
  const spec = {
    work: { task: 'look' }, isolation: 'landlock', desktop: { width: 1920, height: 800, idle: { secs: 600, nanos: 0 }, recording: { frames_per_second: 2 } },
    mcp: {
      known: 'configured',
      own: { own: { reach: { stdio: { command: ['python3', 'tools.py'], environment: {} } }, tools: ['add'], start_timeout: { secs: 30, nanos: 0 }, call_timeout: { secs: 1, nanos: 500000000 } } },
      far: { own: { reach: { http: { url: 'https://example.org/mcp' } }, start_timeout: { secs: 30, nanos: 0 }, call_timeout: { secs: 120, nanos: 0 } } },
    },
  };
  const { options } = templateOf(spec, { isolation: 'namespaces', budget: {} } as never);
  expect(options).toEqual({
    isolation: 'landlock', desktop: { width: 1920, record: { frames_per_second: 2 } },
    mcp: {
      known: true,
      own: { command: ['python3', 'tools.py'], tools: ['add'], start_timeout_s: 30, call_timeout_s: 1.5 },
      far: { url: 'https://example.org/mcp', start_timeout_s: 30, call_timeout_s: 120 },
    },
  });
  const usual = { work: { task: 'look' }, isolation: 'namespaces', desktop: { width: 1280, height: 800, idle: { secs: 600, nanos: 0 }, recording: null } };
  expect(templateOf(usual, { isolation: 'namespaces', budget: {} } as never).options).toEqual({});
});

test('a template of steps asks nothing of an agent', () => {
  const spec = { work: { steps: [{ tool: 'shell' }] }, egress: 'packages', wall_clock: { secs: 5, nanos: 0 }, image: 'host', agent: { approval: 'never', budget: { turns: 9 } } };
  expect(templateOf(spec, defaults)).toEqual({ task: '', steps: [{ tool: 'shell' }], git: null, options: { image: 'host', limits: { wall_clock_s: 5 } } });
});
