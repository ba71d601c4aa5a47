// A file as it was when the job started: as uploaded, or as in the repository.

import { ApiError, post, request, type Schemas } from './api';
import { decodeText, encodeText } from './text-file';

/** The file at the start; `unknown` with the reason if that cannot be determined. */
export type Start = { state: 'loading' } | { state: 'there'; text: string } | { state: 'absent' } | { state: 'unknown'; why: string };

/** The origin of a job's files that were not uploaded: a commit, nowhere, or unknown. */
export type Source = { kind: 'nowhere' } | { kind: 'commit'; commit: string } | { kind: 'unknown'; why: string };

export async function startOf(id: string, path: string, source: Source): Promise<Start> {
  try {
    const response = await request('GET', `/v1/jobs/${id}/start/${path.split('/').map(encodeURIComponent).join('/')}`);
    const file = decodeText(await response.arrayBuffer());
    return file ? { state: 'there', text: encodeText(file) } : { state: 'unknown', why: 'It was not text at the start.' };
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 404)) return { state: 'unknown', why: (error as Error).message };
  }
  if (source.kind === 'nowhere') return { state: 'absent' };
  if (source.kind === 'unknown') return { state: 'unknown', why: source.why };
  try {
    return await fromCommit(id, path, source.commit);
  } catch (error) {
    return { state: 'unknown', why: (error as Error).message };
  }
}

async function fromCommit(id: string, path: string, commit: string): Promise<Start> {
  const command = `LC_ALL=C git show '${commit}:./${path.replaceAll("'", "'\\''")}'`;
  const reply = await post<Schemas['ExecReply']>(`/v1/jobs/${id}/exec`, { command, timeout_s: 20 });
  if (reply.truncated) return { state: 'unknown', why: 'The file in the repository is too large to compare.' };
  if (reply.exit_code === 0) return { state: 'there', text: reply.stdout ?? '' };
  if (/exists on disk, but not in|does not exist in/.test(reply.stderr)) return { state: 'absent' };
  return { state: 'unknown', why: reply.stderr.trim() || reply.reason || 'Git gave no reason.' };
}
