// The look of editors, which matches the rest of the page in light and dark.

import { HighlightStyle, LanguageSupport, StreamLanguage, syntaxHighlighting, type StreamParser } from '@codemirror/language';
import { EditorView } from '@codemirror/view';
import { tags } from '@lezer/highlight';
import type { Extension } from '@codemirror/state';

const look = EditorView.theme({
  '&': { fontSize: '0.88rem', backgroundColor: 'var(--raised)', color: 'var(--ink)', height: '100%' },
  '.cm-content': { fontFamily: 'var(--mono)', caretColor: 'var(--accent)' },
  '.cm-gutters': { backgroundColor: 'var(--sunken)', color: 'var(--soft)', border: 'none' },
  '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'color-mix(in srgb, var(--accent) 7%, transparent)' },
  '&.cm-focused': { outline: 'none' },
  '&.cm-focused .cm-selectionBackground, .cm-selectionBackground': { backgroundColor: 'color-mix(in srgb, var(--accent) 25%, transparent) !important' },
  '.cm-tooltip': { backgroundColor: 'var(--raised)', color: 'var(--ink)', border: '1px solid var(--line)' },
});

const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword], color: 'light-dark(#8a2f8a, #df97df)' },
  { tag: [tags.string, tags.special(tags.string)], color: 'light-dark(#1d7040, #7bd694)' },
  { tag: [tags.number, tags.bool, tags.null], color: 'light-dark(#855300, #e6b566)' },
  { tag: [tags.comment], color: 'var(--soft)', fontStyle: 'italic' },
  { tag: [tags.propertyName, tags.attributeName], color: 'light-dark(#1c5ea8, #84b8f5)' },
  { tag: [tags.function(tags.variableName), tags.typeName, tags.className, tags.tagName], color: 'var(--accent)' },
  { tag: tags.heading, fontWeight: '700' },
]);

export const editorTheme: Extension = [look, syntaxHighlighting(colours)];

const streamed = (parser: StreamParser<unknown>): Extension => new LanguageSupport(StreamLanguage.define(parser));

/** The language of a file by its name. */
export async function languageOf(path: string): Promise<Extension> {
  const name = path.slice(path.lastIndexOf('/') + 1);
  const ending = name.slice(name.lastIndexOf('.') + 1).toLowerCase();
  switch (ending) {
    case 'js': case 'jsx': case 'mjs': case 'cjs': case 'ts': case 'tsx': {
      const { javascript } = await import('@codemirror/lang-javascript');
      return javascript({ jsx: ending.endsWith('x'), typescript: ending.startsWith('t') });
    }
    case 'py':
      return (await import('@codemirror/lang-python')).python();
    case 'json': case 'ipynb':
      return (await import('@codemirror/lang-json')).json();
    case 'md':
      return (await import('@codemirror/lang-markdown')).markdown();
    case 'html': case 'svelte': case 'vue': case 'svg':
      return (await import('@codemirror/lang-html')).html();
    case 'css':
      return (await import('@codemirror/lang-css')).css();
    case 'rs':
      return (await import('@codemirror/lang-rust')).rust();
    case 'sh': case 'bash': case 'zsh': case 'bashrc': case 'profile':
      return streamed((await import('@codemirror/legacy-modes/mode/shell')).shell);
    case 'yaml': case 'yml':
      return streamed((await import('@codemirror/legacy-modes/mode/yaml')).yaml);
    case 'toml': case 'lock':
      return streamed((await import('@codemirror/legacy-modes/mode/toml')).toml);
    case 'go':
      return streamed((await import('@codemirror/legacy-modes/mode/go')).go);
    case 'c': case 'h':
      return streamed((await import('@codemirror/legacy-modes/mode/clike')).c);
    case 'cc': case 'cpp': case 'cxx': case 'hpp': case 'hh':
      return streamed((await import('@codemirror/legacy-modes/mode/clike')).cpp);
    case 'java':
      return streamed((await import('@codemirror/legacy-modes/mode/clike')).java);
    case 'kt': case 'kts':
      return streamed((await import('@codemirror/legacy-modes/mode/clike')).kotlin);
    case 'sql':
      return streamed((await import('@codemirror/legacy-modes/mode/sql')).standardSQL);
    case 'dockerfile':
      return streamed((await import('@codemirror/legacy-modes/mode/dockerfile')).dockerFile);
    default:
      return [];
  }
}
