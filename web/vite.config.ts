import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, type ProxyOptions } from 'vite';

// `npm run dev` serves the page on its own port and proxies the API to a running server.
const server = process.env.CAISSON_URL ?? 'http://127.0.0.1:8000';
const PATHS = ['/v1', '/jobs', '/healthz', '/readyz', '/metrics', '/docs', '/assets', '/openapi.json'];

// The server only accepts requests from its own origin, so the proxy rewrites the origin.
const pass: ProxyOptions = { target: server, ws: true, changeOrigin: true, headers: { origin: server } };

export default defineConfig({
  plugins: [svelte()],
  // One small stylesheet for all views: a view loaded later, or again after a disconnect, never lacks its styles.
  build: { target: 'es2022', cssCodeSplit: false, assetsDir: 'app', chunkSizeWarningLimit: 900, modulePreload: { polyfill: false } },
  server: { proxy: Object.fromEntries(PATHS.map((path) => [path, pass])) },
});
