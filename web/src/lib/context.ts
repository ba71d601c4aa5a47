// The model's prompt as the server reports it: segments with their cost, or text with a heading per part.

export interface Segment {
  kind: string;
  note: string;
  tokens: number;
  text: string;
}

const TITLES: Record<string, string> = {
  system: 'System prompt', tools: 'Tools', task: 'Task', pin: 'Pinned', notes: 'Notes', map: 'Repository map', plan: 'Plan', summary: 'Summary', raw: 'Message',
  masked: 'Message, output left out', cut: 'Message, shortened', missing: 'Missing', pending: 'Not sent yet', volatile: 'Status', user: 'User', assistant: 'Assistant', tool: 'Tool result',
};

/** The kind of a segment in words. */
export const titleOf = (kind: string): string => TITLES[kind] ?? kind;

export interface Context {
  tokens: number | null;
  budget: number | null;
  segments: Segment[];
}

export async function readContext(response: Response): Promise<Context> {
  const text = await response.text();
  if (response.headers.get('content-type')?.includes('json')) return fromJson(JSON.parse(text));
  return { tokens: null, budget: null, segments: fromText(text) };
}

function fromJson(answer: any): Context {
  const segments = (answer.segments ?? []).map((segment: any): Segment => ({
    kind: String(segment.kind ?? segment.role ?? 'part'),
    note: [segment.role, segment.covers, segment.level ? `level ${segment.level}` : ''].filter(Boolean).join(' · '),
    tokens: Number(segment.tokens ?? 0),
    text: String(segment.text ?? segment.preview ?? ''),
  }));
  return { tokens: answer.tokens ?? null, budget: answer.budget_tokens ?? answer.budget ?? null, segments };
}

/** A line such as `# system` starts a part. Estimates four characters per token. */
export function fromText(text: string): Segment[] {
  const segments: Segment[] = [];
  for (const line of text.split('\n')) {
    const heading = /^# (system|tools|user|assistant|tool)$/.exec(line)?.[1];
    if (heading) segments.push({ kind: heading, note: '', tokens: 0, text: '' });
    else if (segments.length === 0) segments.push({ kind: 'prompt', note: '', tokens: 0, text: `${line}\n` });
    else segments[segments.length - 1]!.text += `${line}\n`;
  }
  return segments.map((segment) => ({ ...segment, tokens: Math.ceil(segment.text.length / 4) })).filter((segment) => segment.text.trim() !== '');
}
