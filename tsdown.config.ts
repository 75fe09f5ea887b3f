import { defineConfig } from 'tsdown'

// Two builds: the library with its types, and the command line as few small chunks, each loaded when it is needed.
const shared = { platform: 'node', target: 'node20', clean: false, logLevel: 'error', outExtensions: () => ({ js: '.js', dts: '.d.ts' }) } as const

export default defineConfig([
  { ...shared, entry: { index: 'src/index.ts' }, format: 'esm', outDir: 'dist', dts: true },
  { ...shared, entry: { main: 'src/cli/main.ts' }, format: 'esm', outDir: 'dist/cli', dts: false, noExternal: [/.*/], minify: 'dce-only' },
  { ...shared, entry: { conformance: 'test/conformance/cli.ts' }, format: 'esm', outDir: 'dist/test', dts: false, noExternal: [/.*/] },
])
