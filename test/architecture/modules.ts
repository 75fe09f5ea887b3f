/**
 * The modules of `src` and what each may import: the only statement of it. `modules.test.ts` checks every import
 * against these rows and ARCHITECTURE.md's table against `moduleTable`.
 */
type Module = {
  /** A folder or a file below `src`. The longest name that matches a file is its module. */
  readonly name: string
  readonly holds: string
  /** Other modules. */
  readonly imports: readonly string[]
  /** Packages of npm. */
  readonly packages?: readonly string[]
}

const TRACING = [
  '@opentelemetry/api',
  '@opentelemetry/sdk-trace-node',
  '@opentelemetry/exporter-trace-otlp-http',
  '@opentelemetry/resources',
]

const MODULES: readonly Module[] = [
  {
    name: 'model',
    holds:
      'the types that every module shares, strict parsers, guarantees, error codes, configuration, the shapes of the API’s answers (`api/`)',
    imports: [],
    // Line differences, for the command line and the console.
    packages: ['diff'],
  },
  {
    name: 'policy',
    holds: 'pure decisions: commands, paths, addresses, tenants, plans',
    imports: ['model'],
    packages: ['unbash'],
  },
  {
    name: 'host',
    holds:
      'everything that touches the operating system: processes, cgroups, files, sockets, the protocol to the guest agent, reviews, secrets',
    imports: ['model'],
    packages: ['smol-toml'],
  },
  {
    name: 'store',
    holds: 'tables in SQLite or PostgreSQL behind one query layer, migrations',
    imports: ['model'],
    packages: ['libsql', 'pg'],
  },
  {
    name: 'audit',
    holds:
      'the audit log: hash chain, append, verification, proofs that a record is in the log; in files or in the store',
    imports: ['model', 'store'],
  },
  {
    name: 'egress',
    holds:
      'the HTTP and SOCKS5 proxy of a sandbox, secrets that the proxy inserts into requests, fetches that never reach a private address',
    imports: ['model', 'host', 'policy'],
  },
  {
    name: 'backends',
    holds: '`backend.ts` (the contract), `registry.ts`, and one folder per isolation mechanism',
    imports: ['model', 'host'],
    // Types only: `compose` loads it.
    packages: ['@kubernetes/client-node'],
  },
  {
    name: 'wasm',
    holds:
      'WebAssembly: counting executed instructions (`meter/`), components (`component/`), the worker thread (`worker/`), host functions (`host/`)',
    imports: ['model', 'policy', 'host', 'egress'],
  },
  { name: 'eval', holds: 'safe evaluation of JavaScript expressions', imports: ['model'] },
  {
    name: 'skills',
    holds: 'skill manifests, inspection, runs, usage',
    // The lock of the audit log: several processes write the usage log too.
    imports: ['model', 'policy', 'host', 'egress', 'backends', 'wasm', 'eval', 'audit'],
  },
  {
    name: 'supervisor',
    holds:
      'the lifecycle of sandboxes: the gate that checks every start, provisioning, commands, deadlines, quotas, pools, keys, approvals, snapshots, metrics, the MCP gateway',
    imports: ['model', 'policy', 'host', 'egress', 'backends', 'wasm', 'eval', 'skills', 'audit', 'store'],
    // Talks to the MCP servers behind the gateway; the types of optional packages that `compose` loads.
    packages: ['@modelcontextprotocol/client', ...TRACING],
  },
  {
    name: 'cluster',
    holds:
      'several servers on one PostgreSQL: the cluster’s key and certificates, leases and fencing, who owns what, placement',
    imports: ['model', 'host', 'audit', 'store', 'supervisor'],
  },
  {
    name: 'server',
    holds:
      'the HTTP API: `/v1` routes, streams, authentication, limits, OpenAPI; E2B’s API in `e2b/`; requests for other nodes in `cluster/`',
    imports: ['model', 'audit', 'supervisor', 'cluster'],
    packages: ['hono', 'hono/route', '@hono/node-server', 'ws'],
  },
  { name: 'client', holds: '`ringfence/client`: the typed SDK on `fetch` alone', imports: ['model'] },
  {
    name: 'adapters',
    holds: 'tools for agents: MCP server, hooks of coding agents, tool formats of model vendors',
    imports: ['model', 'client'],
    packages: ['@modelcontextprotocol/server', '@modelcontextprotocol/server/stdio'],
  },
]

const INNER = MODULES.map(({ name }) => name)

/** The composition root and everything above it. */
const ENTRY_MODULES: readonly Module[] = [
  {
    name: 'compose',
    holds: 'the composition root: the only code that reads the environment and connects all modules',
    imports: INNER,
    // Optional packages, where the caller has installed them.
    packages: ['e2b', '@anthropic-ai/sdk', 'aws4fetch', '@kubernetes/client-node', ...TRACING],
  },
  {
    // Separate from `compose`, so that only `ringfence serve` loads the server.
    name: 'compose/serve-parts.ts',
    holds: 'the parts of a server',
    imports: [...INNER, 'compose'],
  },
  {
    name: 'compose/serve.ts',
    holds: 'starts and stops a server',
    imports: [...INNER, 'compose', 'compose/serve-parts.ts', 'agents.ts'],
  },
  {
    name: 'agents.ts',
    holds: '`ringfence/agents`: the exports for people who build agents',
    imports: [...INNER, 'compose'],
  },
  {
    name: 'library-sandbox.ts',
    holds:
      'a sandbox as the library shows it: text output, exit codes, output as an iterator, hints in the library’s words',
    imports: [...INNER],
  },
  {
    name: 'api.ts',
    holds: 'the library: `Sandbox`, `wrap`, `SkillRunner`',
    imports: [...INNER, 'compose', 'library-sandbox.ts'],
  },
  {
    name: 'compat',
    holds:
      'functions and classes with the names of other sandbox libraries: `sandboxExecute`, the builder, `E2BSandbox`',
    imports: [...INNER, 'compose', 'library-sandbox.ts', 'api.ts'],
  },
  {
    name: 'index.ts',
    holds: '`ringfence`: the exports of the library',
    imports: [...INNER, 'compose', 'library-sandbox.ts', 'api.ts', 'compat'],
  },
  {
    name: 'prove',
    holds:
      '`ringfence prove`: attacks on every guarantee, each with a control run on `native`; the conformance suite of the tests is the same code',
    imports: [...INNER, 'compose'],
  },
  {
    name: 'cli',
    holds: 'the command line, one file per command',
    imports: [...INNER, 'compose', 'agents.ts', 'compose/serve.ts', 'prove'],
    // Terminals of sandboxes on a server, and the channel of `sandbox ssh`.
    packages: ['ws'],
  },
]

/** Outside of `src`; `modules.test.ts` checks the console's imports by a rule of its own. */
const OUTSIDE: readonly (readonly [name: string, holds: string, imports: string])[] = [
  ['web', 'the console: React, built into `dist/web`, served under `/console/`', 'client, model'],
  [
    'guest/agent',
    'a static C program: launcher on the host, PID 1 in a sandbox, `/init` of a virtual machine',
    '–',
  ],
  [
    'guest/front',
    'a static C program: the native front of the command line, and the listener of the broker',
    '–',
  ],
  ['guest/channel', 'a static C program: the end of the TLS channel in a Pod', '–'],
  ['guest/kernels', 'the code interpreter’s programs, run inside sandboxes', '–'],
  ['guest/node', 'makes Node’s own `fetch` inside a sandbox use the proxy', '–'],
  ['guest/qemu', 'makes an old QEMU open saved virtual machines read-only', '–'],
]

/** For each module: the modules, and with `npm:` in front the packages, that it may import. */
export const IMPORTS: Readonly<Record<string, readonly string[]>> = Object.fromEntries(
  [...MODULES, ...ENTRY_MODULES].map(({ name, imports, packages = [] }) => [
    name,
    [...imports, ...packages.map((one) => `npm:${one}`)],
  ]),
)

/** The module of a file below `src`; a file outside of all modules is its own. */
export function moduleOf(file: string): string {
  const matching = Object.keys(IMPORTS).filter((name) => file === name || file.startsWith(`${name}/`))
  return matching.toSorted((a, b) => b.length - a.length)[0] ?? file
}

/** The table in ARCHITECTURE.md. */
export function moduleTable(): string {
  const rows = [...MODULES, ...ENTRY_MODULES].map(({ name, holds, imports }) => {
    const isAll = INNER.every((inner) => imports.includes(inner))
    const more = imports.filter((one) => !INNER.includes(one))
    const listed = isAll
      ? ['all modules listed before `compose`', ...more.map((one) => `\`${one}\``)]
      : imports
    return `| \`src/${name}\` | ${holds} | ${listed.join(', ') || 'nothing'} |`
  })
  const outside = OUTSIDE.map((row) => `| \`${row[0]}\` | ${row[1]} | ${row[2]} |`)
  return ['| module | holds | may import |', '|---|---|---|', ...rows, ...outside, ''].join('\n')
}
