// Which limits of a budget are used up, and the doubled budget.

import type { Budget, Spent } from './fold';
import { count, duration, money } from './format';

type Limit = keyof Budget;

const NAMES: Record<Limit, string> = { turns: 'turns', tokens: 'tokens', money_usd: 'money', tool_calls: 'calls', wall_s: 'time' };

function used(spent: Spent, now: number): Record<Limit, number> {
  return {
    turns: spent.turns,
    tokens: spent.input + spent.output,
    money_usd: spent.dollars,
    tool_calls: spent.toolCalls,
    wall_s: (spent.worked + (spent.workingSince === null ? 0 : Math.max(0, now - spent.workingSince))) / 1000,
  };
}

/** Doubles the limits that are used up; if none is by this page's count, the one that is closest. */
export function doubled(budget: Budget, spent: Spent, now: number): Budget {
  const sums = used(spent, now);
  const limits = (Object.keys(NAMES) as Limit[]).filter((name) => typeof budget[name] === 'number');
  const share = (name: Limit) => sums[name] / Math.max(Number.MIN_VALUE, Number(budget[name]));
  const most = Math.max(0, ...limits.map(share));
  const chosen = limits.filter((name) => share(name) >= Math.min(1, most));
  return Object.fromEntries(chosen.map((name) => [name, Number(budget[name]) * 2]));
}

/** The budget as text, such as `turns: 8`. */
export function inWords(budget: Budget): string {
  const value = (name: Limit, most: number) => (name === 'money_usd' ? money(most) : name === 'wall_s' ? duration(most * 1000) : count(most));
  return (Object.entries(budget) as [Limit, number][]).map(([name, most]) => `${NAMES[name]}: ${value(name, most)}`).join(', ');
}
