import { defineConfig } from 'vite';

// The desktop page: noVNC with our own controls. The server embeds the files under fixed names.
export default defineConfig({
  publicDir: false,
  build: {
    target: 'es2022',
    outDir: 'desktop/dist',
    modulePreload: { polyfill: false },
    rollupOptions: {
      input: 'desktop/src/desktop.js',
      output: { entryFileNames: 'desktop.js', assetFileNames: 'desktop.[ext]', codeSplitting: false },
    },
  },
});
