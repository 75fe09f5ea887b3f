import { defineConfig, type UserConfig } from 'tsdown'

const shared = {
  platform: 'node',
  target: 'node20',
  clean: false,
  logLevel: 'error',
  outExtensions: () => ({ js: '.js', dts: '.d.ts' }),
} satisfies UserConfig

// Every file costs a look-up: what `run` needs lies in three. The judgement is apart because not every command judges.
const CHUNKS = [
  {
    name: 'core',
    test: /src\/(model(?!\/(text\/text-diff|admission|reference))|host(?!\/(net\/(container-engine|grpc|receive-file)|warm-pool|broker\/(?!served)))|backends(?!\/(docker|gvisor|kubernetes|microvm|e2b|openshell|remote|images|container-handle|container-pool|container-files|tar)))\/|src\/audit\/(?!store|open-store)|src\/supervisor\/(gate|sandbox\.|sandbox-record|approvals\/approval-facts)|src\/compose\/(?!serve|doctor|mcp-gateway|exec-server-mount)|policy\/(plan|grants\/grants)/,
    priority: 3,
  },
  { name: 'judge', test: /policy\/(commands|rules|policy|network|router|containment)|unbash/, priority: 2 },
  { name: 'wasm', test: /src\/(wasm|eval)\/|quickjs/, priority: 1 },
]

// CommonJS with everything inside: that starts fastest (docs/decisions/0002).
const program = {
  ...shared,
  format: 'cjs',
  outDir: 'dist/cli',
  dts: false,
  // All but the native store engine, which finds its own binary.
  noExternal: [/^(?!libsql$|pg-native$|e2b$|@anthropic-ai\/sdk$)/],
  external: ['libsql', 'pg-native', 'e2b', '@anthropic-ai/sdk'],
  minify: true,
  outExtensions: () => ({ js: '.cjs' }),
  // `import()` needs a callback that code from V8's cache has not (src/cli/entry/code-cache.ts); `require` needs none.
  outputOptions: { codeSplitting: { groups: CHUNKS }, dynamicImportInCjs: false },
} satisfies UserConfig

export default defineConfig([
  {
    ...shared,
    entry: { index: 'src/index.ts', agents: 'src/agents.ts' },
    format: 'esm',
    outDir: 'dist',
    dts: true,
  },
  {
    ...shared,
    platform: 'neutral',
    entry: { client: 'src/client/index.ts' },
    format: 'esm',
    outDir: 'dist',
    dts: true,
  },
  { ...program, entry: { ringfence: 'src/cli/entry/ringfence.ts' } },
  { ...program, entry: { warm: 'src/cli/entry/warm.ts' } },
  { ...program, entry: { main: 'src/cli/main.ts' } },
  // What the JavaScript kernel needs inside sandboxes.
  {
    ...shared,
    entry: { syntax: 'guest/kernels/syntax.mjs' },
    format: 'cjs',
    outDir: 'dist/guest/kernels',
    dts: false,
    noExternal: [/.*/],
    minify: true,
    outExtensions: () => ({ js: '.cjs' }),
  },
  { ...shared, entry: { library: 'bench/library.ts' }, format: 'esm', outDir: 'dist/bench', dts: false },
  {
    ...shared,
    entry: {
      conformance: 'test/conformance/cli.ts',
      'fuzz-shell': 'test/policy/fuzz-shell.ts',
      'fuzz-options': 'test/policy/fuzz-options.ts',
    },
    format: 'esm',
    outDir: 'dist/test',
    dts: false,
    noExternal: [/.*/],
  },
])
