// The files that a finished job leaves beside its zip.

const PURPOSES: Record<string, string> = {
  'manifest.json': 'files of the zip with digests',
  'logs/agent.log': 'log as text',
  'audit/network.jsonl': 'connections',
  'audit/files.jsonl': 'files that the job touched',
  'learned-egress.json': 'egress policy that would suffice',
  'context.txt': 'last prompt, or calls of the steps',
  'memory.json': 'history',
};

/** What a download is for, in a few words. */
export function purposeOf(name: string): string {
  if (name.endsWith('.ipynb')) return 'notebook with the cells that ran';
  if (name.endsWith('.apng')) return 'recording of the desktop';
  return PURPOSES[name] ?? '';
}
