import { defineConfig, type UserConfig } from 'tsdown'

const shared = {
  platform: 'node',
  target: 'node20',
  clean: false,
  logLevel: 'error',
  outExtensions: () => ({ js: '.js', dts: '.d.ts' }),
} satisfies UserConfig

// CommonJS with everything inside: that starts fastest (docs/decisions/0002).
const program = {
  ...shared,
  format: 'cjs',
  outDir: 'dist/cli',
  dts: false,
  noExternal: [/.*/],
  minify: true,
  outExtensions: () => ({ js: '.cjs' }),
} satisfies UserConfig

export default defineConfig([
  { ...shared, entry: { index: 'src/index.ts' }, format: 'esm', outDir: 'dist', dts: true },
  { ...program, entry: { ringfence: 'src/cli/ringfence.ts' } },
  { ...program, entry: { warm: 'src/cli/warm.ts' } },
  { ...program, entry: { main: 'src/cli/main.ts' } },
  { ...shared, entry: { library: 'bench/library.ts' }, format: 'esm', outDir: 'dist/bench', dts: false },
  {
    ...shared,
    entry: { conformance: 'test/conformance/cli.ts', 'fuzz-shell': 'test/fuzz-shell.ts' },
    format: 'esm',
    outDir: 'dist/test',
    dts: false,
    noExternal: [/.*/],
  },
])
