import { expect, test } from 'vitest';
import { colourLines } from './colour';

const CODE: [string, string, string][] = [
  ['run.sh', 'if true; then echo "hi"; fi', 'tok-keyword'],
  ['a.yaml', 'name: "x" # why', 'tok-string'],
  ['Cargo.toml', 'name = "x"', 'tok-string'],
  ['main.go', 'func main() { return }', 'tok-keyword'],
  ['main.c', 'int main(void) { return 0; }', 'tok-keyword'],
  ['Main.java', 'class Main { return 1; }', 'tok-keyword'],
  ['q.sql', 'select 1 from t', 'tok-keyword'],
  ['deep/Dockerfile', 'FROM debian', 'tok-keyword'],
  ['a.py', 'return 1', 'tok-keyword'],
];

test.each(CODE)('%s has its colours', async (path, text, expected) => {
  const lines = await colourLines(text, path);
  expect(lines.map((line) => line.map((piece) => piece.text).join(''))).toEqual([text]);
  expect(lines[0]?.map((piece) => piece.class)).toContain(expected);
}, 60_000);
