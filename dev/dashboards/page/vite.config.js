// Grafana's packages are made for Grafana's own build: some of their modules name exports that were left out of what is published, and
// some read process.env.
import { defineConfig } from 'vite';

export default defineConfig({
  base: './',
  define: { 'process.env': '{}', 'process.env.NODE_ENV': '"production"', global: 'globalThis' },
  build: {
    chunkSizeWarningLimit: 10000,
    rollupOptions: { shimMissingExports: true, onwarn: () => {} },
  },
});
