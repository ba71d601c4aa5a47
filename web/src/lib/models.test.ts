import { expect, test } from 'vitest';
import { choiceFrom, choicesOf, isConfigured, modelsOf, originOf, shortName, troubleOf, type ModelStatus } from './models';

const limits = {} as never;
const survey = {
  model: { name: 'ollama/qwen3', limits }, trouble: null,
  sources: [{ kind: 'ollama', address: 'a', trouble: null, models: [{ name: 'ollama/llama' }, { name: 'ollama/qwen3' }] }, { kind: 'openai', address: 'b', trouble: 'no key', models: [] }],
} as unknown as ModelStatus;

test('models can be chosen once each, the default first', () => {
  expect(choicesOf(survey)).toEqual(['ollama/qwen3', 'ollama/llama']);
  expect(choicesOf(null)).toEqual([]);
});

test('a missing configuration is not a problem of its own', () => {
  const trouble = (detail: string) => troubleOf({ ...survey, trouble: { code: 'x', detail } });
  expect([trouble('no model: none is configured; set one'), trouble('the key is refused'), troubleOf(null)]).toEqual(['', 'the key is refused', '']);
});

test('the address of a server is no part of a model name', () => {
  expect([shortName('http://gpu:8000/v1#qwen3'), shortName('ollama/qwen3')]).toEqual(['qwen3', 'ollama/qwen3']);
});

test('empty fields of the form are left out, so that a stored key is kept', () => {
  expect(choiceFrom({ provider: 'openai', model: ' gpt-5 ', address: '', key: ' ' })).toEqual({ provider: 'openai', model: 'gpt-5' });
  expect(choiceFrom({ provider: '', model: '', address: 'http://gpu:8000/v1', key: 'sk-1' })).toEqual({ base_url: 'http://gpu:8000/v1', key: 'sk-1' });
});

test('only a model of the configuration has priority over a choice', () => {
  const of = (origin: string | null) => ({ ...survey, origin }) as unknown as ModelStatus;
  expect(['file', 'environment', 'chosen', null].map((origin) => isConfigured(of(origin)))).toEqual([true, true, false, false]);
  expect([originOf(of('chosen')), originOf(of(null)), originOf(null)]).toEqual(['Chosen by an admin.', 'Found on the server’s machine.', '']);
  expect(originOf(of('environment'))).toContain('CAISSON_MODEL');
});

test('the models of a provider are offered without its name', () => {
  expect([modelsOf(survey, 'ollama'), modelsOf(survey, 'openai')]).toEqual([['qwen3', 'llama'], []]);
});
