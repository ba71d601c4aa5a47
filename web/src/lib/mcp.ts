// The job's MCP servers, and which of them a tool belongs to.

export interface McpServer {
  name: string;
  /** As in the event `mcp_changed`. */
  state: string;
  /** How often its process was started. */
  process: number;
  /** The tools' own names. */
  tools: string[];
  /** The tools that cannot be used, each with the reason. */
  leftOut: string[];
  /** Why it is not connected. */
  reason: string;
}

/** The servers after one of them has changed. Does not modify the given map. */
export function takeServer(servers: Map<string, McpServer>, data: any): Map<string, McpServer> {
  const name = String(data.server ?? '');
  const known = servers.get(name);
  const tools: string[] = (data.tools ?? []).map((tool: unknown) => splitTool(String(tool))?.tool ?? String(tool));
  return new Map(servers).set(name, {
    name,
    state: data.state ?? '',
    process: data.process ?? 0,
    // While a server is started again, its tools are the ones that it had.
    tools: data.state === 'connected' ? tools : (known?.tools ?? tools),
    leftOut: data.state === 'connected' ? (data.left_out ?? []) : (known?.leftOut ?? []),
    reason: data.reason ?? '',
  });
}

const STATES: Record<string, { word: string; tone: string }> = {
  starting: { word: 'starting', tone: 'work' },
  connected: { word: 'ready', tone: 'good' },
  failed: { word: 'restarting', tone: 'wait' },
  given_up: { word: 'given up', tone: 'bad' },
};

/** The state in one word, and the class of its badge. */
export function stateOf(server: McpServer): { word: string; tone: string } {
  const state = STATES[server.state] ?? { word: server.state, tone: '' };
  return server.state === 'starting' && server.process > 1 ? { ...state, word: 'restarting' } : state;
}

/** The server and the tool in a name such as `hub__search`; `null` for built-in tools. */
export function splitTool(name: string): { server: string; tool: string } | null {
  const found = /^([a-z0-9-]+)__(.+)$/s.exec(name);
  return found ? { server: found[1] ?? '', tool: found[2] ?? '' } : null;
}
