// Examples for the start page.

export const TASKS = [
  'Build me a todo app in React with Vite, with a test, and show it running',
  'Write a Python script that finds duplicate photos in a folder, with tests',
  'Fix the failing tests in the files that I upload, and explain what was wrong',
];

export const STEPS: { name: string; steps: object[] }[] = [
  {
    name: 'Hello',
    steps: [
      { tool: 'write_file', path: 'hello.py', content: 'print("hello from the sandbox")\n' },
      { tool: 'shell', command: 'python3 hello.py', name: 'run it', expect: { stdout_contains: 'hello' } },
    ],
  },
  {
    name: 'A small website',
    steps: [
      { tool: 'write_file', path: 'site/index.html', content: '<!doctype html><title>Hi</title><h1>It works</h1>\n' },
      { tool: 'shell', command: 'cd site && (python3 -m http.server 8080 >/dev/null 2>&1 &) ; sleep 1; curl -s localhost:8080', name: 'serve and fetch it' },
    ],
  },
  {
    name: 'A plot in a notebook',
    steps: [
      { tool: 'python', code: 'values = [n * n for n in range(20)]\nprint(sum(values))' },
      { tool: 'python', code: 'import matplotlib.pyplot as plt\nplt.plot(values)\nplt.title("squares")\nplt.savefig("plot.png")\nplt.show()' },
    ],
  },
];
