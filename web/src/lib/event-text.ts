// What the timeline says about events, in words.

import type { Ask, LogEvent } from './folded';

/** The user who caused an event. A server without API keys calls everybody `anybody`. */
export function nameOf(actor: LogEvent['actor']): string {
  return actor && actor.name !== 'anybody' ? actor.name : 'a user';
}

/** Describes a user action in the sandbox, other than running something. */
export function describeAction(action: any): string {
  const said: Record<string, string> = {
    file_put: `uploaded ${action.path} (${action.bytes ?? 0} bytes)`,
    directory_made: `created the folder ${action.path}`,
    link_made: `made ${action.path} a link to ${action.to}`,
    file_moved: `moved ${action.path} to ${action.to}`,
    file_deleted: `deleted ${action.path}`,
    stdin_given: `wrote ${action.bytes ?? 0} bytes to a process's stdin`,
    terminal_joined: 'joined a terminal',
    kernel_interrupted: `interrupted the kernel ${action.name}`,
    kernel_restarted: `restarted the kernel ${action.name}`,
  };
  const words = said[action.what] ?? String(action.what ?? '').replaceAll('_', ' ');
  return action.failed ? `${words}: failed, ${action.failed}` : words;
}

export function describeLoss(data: any): string {
  const names = (kernel: any) => kernel.variables.join(', ') || 'its variables are unknown';
  const kernels = (data.kernels ?? []).map((kernel: any) => ` The kernel ${kernel.name} was lost with it (${names(kernel)}).`);
  return `Sandbox lost: ${data.detail}. The job continues from its last checkpoint.${kernels.join('')}`;
}

/** What did not happen because nobody answered the input request. */
export const WAITED_FOR: Record<string, string> = {
  plan: 'the plan was not accepted', command: 'the command was not allowed', egress: 'the connection was not allowed',
};

export function describeAnswer(ask: Ask, answer: any): string {
  const verdict = answer.accept === true ? 'Accepted' : answer.accept === false ? 'Refused' : '';
  const what = ask.egress ? ` ${ask.egress.host}:${ask.egress.port}` : '';
  return [verdict && `${verdict}${what}`, answer.text].filter(Boolean).join(': ') || (answer.plan ? 'Accepted with changes' : 'Answered');
}
