// The models of the server: which one agents use, which ones can be chosen, and what is wrong with them.

import { get, post, remove, request, type Schemas } from './api';

export type ModelStatus = Schemas['ModelStatus'];

/** The provider field of the form for a server that is none of the named providers. */
export const OTHER_SERVER = '';

/** What the form for setting up a model contains. */
export interface ModelFields { provider: string; model: string; address: string; key: string }

export const askModels = () => get<ModelStatus>('/v1/models');
export const saveModel = (fields: ModelFields) => request('PUT', '/v1/models/choice', choiceFrom(fields));
export const testModel = (fields: ModelFields) => post<Schemas['ModelTest']>('/v1/models/test', choiceFrom(fields));
export const forgetModel = () => remove('/v1/models/choice');

/** The request of the form. Empty fields are left out: the server then keeps a stored key. */
export function choiceFrom({ provider, model, address, key }: ModelFields): Record<string, string> {
  const fields = { provider, model: model.trim(), base_url: address.trim(), key: key.trim() };
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== ''));
}

/** Whether the configuration names the model, so that none can be chosen on the page. */
export function isConfigured(survey: ModelStatus | null): boolean {
  return survey?.origin === 'file' || survey?.origin === 'environment';
}

/** What sets the server's model. */
export function originOf(survey: ModelStatus | null): string {
  switch (survey?.origin) {
    case 'file': return 'Set in the configuration file, which has priority over a choice on this page.';
    case 'environment': return 'Set by CAISSON_MODEL in the server’s environment, which has priority over a choice on this page.';
    case 'chosen': return 'Chosen by an admin.';
    default: return survey?.model ? 'Found on the server’s machine.' : '';
  }
}

/** The known models of a provider, without its name. */
export function modelsOf(survey: ModelStatus | null, provider: string): string[] {
  const start = `${provider}/`;
  return choicesOf(survey).filter((name) => name.startsWith(start)).map((name) => name.slice(start.length));
}

/** The models that a job can name, the default one first. */
export function choicesOf(survey: ModelStatus | null): string[] {
  const names = (survey?.sources ?? []).flatMap((source) => (source.models ?? []).map((model) => model.name));
  return [...new Set([...(survey?.model ? [survey.model.name] : []), ...names])];
}

/** The server's problem with a model, except that none is configured, which the page explains itself. */
export function unlessMissing(detail: string): string {
  return /^no model: none is configured/.test(detail) ? '' : detail;
}

/** The server's problem with its own model. */
export function troubleOf(survey: ModelStatus | null): string {
  return unlessMissing(survey?.trouble?.detail ?? '');
}

/** A model's name without the address of its server. */
export function shortName(name: string): string {
  return name.replace(/^https?:\/\/[^#]*#/, '');
}
