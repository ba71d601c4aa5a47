// Numbers and times in human-readable form.

export function ago(time: string | number, now = Date.now()): string {
  const seconds = Math.max(0, (now - new Date(time).getTime()) / 1000);
  if (seconds < 45) return 'just now';
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

export function duration(milliseconds: number): string {
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  const rest = Math.floor(seconds % 60);
  if (minutes < 90) return rest === 0 ? `${minutes} min` : `${minutes} min ${rest} s`;
  return minutes % 60 === 0 ? `${Math.floor(minutes / 60)} h` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function bytes(count: number): string {
  if (count < 1024) return `${count} B`;
  const units = ['KiB', 'MiB', 'GiB', 'TiB'];
  let value = count;
  let unit = 'B';
  for (const next of units) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${unit}`;
}

export function count(value: number): string {
  if (value < 1000) return String(value);
  if (value < 1_000_000) return `${(value / 1000).toFixed(value < 10_000 ? 1 : 0)}k`;
  return `${(value / 1_000_000).toFixed(1)}M`;
}

export function money(dollars: number): string {
  if (dollars === 0) return '$0';
  return dollars < 0.01 ? '< $0.01' : `$${dollars.toFixed(2)}`;
}

export function clock(time: number): string {
  return new Date(time).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit' });
}

export function firstLine(text: string, limit = 140): string {
  const line = text.trim().split('\n', 1)[0] ?? '';
  return line.length > limit ? `${line.slice(0, limit - 1)}…` : line;
}

export function steps(count: number): string {
  return count === 1 ? '1 step' : `${count} steps`;
}

/** The state of a job in a word or two. */
export function pausedWord(state: string, code: string | null | undefined): string {
  if (state !== 'paused') return state;
  switch (code) {
    case 'question': case 'approval':
      return 'needs you';
    case 'budget':
      return 'budget reached';
    case 'no_model':
      return 'needs a model';
    case 'stuck':
      return 'stuck';
    case 'takeover': case 'taken_over':
      return 'taken over';
    default:
      return 'paused';
  }
}

/** The time left until a future time. */
export function until(time: number, now = Date.now()): string {
  const seconds = (time - now) / 1000;
  if (seconds <= 0) return 'now';
  if (seconds < 90) return `in ${Math.ceil(seconds)} s`;
  if (seconds < 5400) return `in ${Math.round(seconds / 60)} min`;
  return `in ${Math.round(seconds / 3600)} h`;
}

/** The state of a job as one of five colors. */
export function tone(status: string): 'wait' | 'work' | 'good' | 'bad' | 'off' {
  switch (status) {
    case 'running':
      return 'work';
    case 'complete':
      return 'good';
    case 'failed':
      return 'bad';
    case 'cancelled':
      return 'off';
    default:
      return 'wait';
  }
}

/** Date and time in the browser's locale. */
export function moment(time: string | number): string {
  return new Date(time).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' });
}
