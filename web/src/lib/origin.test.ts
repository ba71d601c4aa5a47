import { expect, test, vi } from 'vitest';

vi.stubGlobal('location', { hostname: 'localhost', host: 'localhost:8000', port: '8000', protocol: 'http:' });
const { entranceOf, isNear } = await import('./origin');

test('what lets one in is in the form and never in an address', () => {
  const entrance = entranceOf('j', 'jupyter', 'lab/tree/a.ipynb', 'sealed.1.x', 'token');
  expect(entrance.fields).toEqual({ pass: 'sealed.1.x', takeover: 'token', to: '/lab/tree/a.ipynb' });
  expect(`${entrance.address} ${entrance.action}`).toBe('http://j-jupyter.localhost:8000/lab/tree/a.ipynb http://j-jupyter.localhost:8000/_caisson/enter');
  expect(entranceOf('j', 80, '', '').fields).toBeNull();
});

test('addresses of jobs are found on the machine of the server alone', () => {
  for (const host of ['localhost', '127.0.0.1', '[::1]', 'a.localhost']) expect(isNear(host)).toBe(true);
  for (const host of ['caisson.example', '192.168.1.7', '127.0.0.1.example.org', 'localhost.example']) expect(isNear(host)).toBe(false);
});
