import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, type ProxyOptions } from 'vite';

// `npm run dev` shows the page on its own port and passes the API on to a running server.
const server = process.env.CAISSON_URL ?? 'http://127.0.0.1:8000';
const PATHS = ['/v1', '/jobs', '/healthz', '/readyz', '/metrics', '/docs', '/assets', '/openapi.json'];

// The server takes requests of its own page alone, so they come as if from there.
const pass: ProxyOptions = { target: server, ws: true, changeOrigin: true, headers: { origin: server } };

export default defineConfig({
  plugins: [svelte()],
  // One small file of styles for all: a view that is loaded later, or again after a break, never lacks its own.
  build: { target: 'es2022', cssCodeSplit: false, assetsDir: 'app', chunkSizeWarningLimit: 900, modulePreload: { polyfill: false } },
  server: { proxy: Object.fromEntries(PATHS.map((path) => [path, pass])) },
});
