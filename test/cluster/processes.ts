import { type ChildProcess, spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { packageRoot } from '../conformance/world.ts'
import { type Answer, type CallOptions, callAt } from '../server/test-server.ts'
import { newCluster } from './fleet.ts'

/** Nodes of one cluster as processes of their own, to be killed. */

export type NodeProcess = {
  readonly name: string
  readonly dir: string
  readonly child: ChildProcess
  readonly pid: number
  readonly url: string
  readonly said: () => string
  readonly ended: Promise<number | null>
  readonly call: (method: string, path: string, options?: CallOptions) => Promise<Answer>
}

export type StartOptions = {
  readonly dir?: string
  /** What runs the program. */
  readonly wrap?: readonly string[]
  /** Where it listens for clients and other nodes; default: loopback. */
  readonly address?: string
  readonly env?: Readonly<Record<string, string>>
}

export type Processes = {
  readonly key: string
  readonly nodes: NodeProcess[]
  /** Starts a node; with the directory of an earlier one that one again. */
  readonly start: (name: string, more?: StartOptions) => Promise<NodeProcess>
  readonly close: () => Promise<void>
}

export async function startProcesses(
  databaseUrl: string,
  {
    names,
    leaseSecs = 3,
    rest = '',
    each = () => ({}),
  }: {
    readonly names: readonly string[]
    readonly leaseSecs?: number
    readonly rest?: string
    readonly each?: (name: string) => StartOptions
  },
): Promise<Processes> {
  const clusterKey = await newCluster(databaseUrl)
  const nodes: NodeProcess[] = []
  let key = ''
  const start: Processes['start'] = async (name, more = {}) => {
    const options = { ...each(name), ...more }
    const { dir = mkdtempSync(join(tmpdir(), 'rf-cluster-')), wrap = [], address, env = {} } = options
    const state = join(dir, 'state')
    mkdirSync(state, { recursive: true, mode: 0o700 })
    clusterKey.save(join(state, 'cluster.key'))
    writeFileSync(
      join(dir, 'ringfence.toml'),
      [
        rest,
        ...(address ? [`[server]\nhosts = ["${address}"]`] : []),
        `[cluster]\nname = "${name}"\nlease_secs = ${leaseSecs}`,
        ...(address ? [`listen = "${address}:4300"`] : []),
        '',
      ].join('\n'),
    )
    const node = await launch({ name, dir, databaseUrl, wrap, address, env, printKey: key === '' })
    key ||= node.key
    nodes.push(node)
    return {
      ...node,
      call: (method, path, options = {}) => callAt(node.url, method, path, { key, ...options }),
    }
  }
  const started: NodeProcess[] = []
  for (const name of names) started.push(await start(name))
  nodes.splice(0, nodes.length, ...started)
  return {
    get key() {
      return key
    },
    nodes,
    start,
    close: async () => {
      for (const { child, ended } of nodes) {
        if (child.exitCode === null && child.signalCode === null) {
          child.kill('SIGCONT')
          child.kill('SIGTERM')
        }
        const late = setTimeout(() => child.kill('SIGKILL'), 10_000)
        await ended
        clearTimeout(late)
      }
      for (const { dir } of nodes) rmSync(dir, { recursive: true, force: true })
    },
  }
}

type Launch = {
  readonly name: string
  readonly dir: string
  readonly databaseUrl: string
  readonly wrap: readonly string[]
  readonly address: string | undefined
  readonly env: Readonly<Record<string, string>>
  readonly printKey: boolean
}

async function launch({
  name,
  dir,
  databaseUrl,
  wrap,
  address,
  env,
  printKey,
}: Launch): Promise<NodeProcess & { readonly key: string }> {
  const program = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
  const argv = [
    ...wrap,
    process.execPath,
    program,
    'serve',
    '--json',
    '--port',
    '0',
    ...(address ? ['--host', address, '--insecure-bind'] : []),
    ...(printKey ? ['--print-key'] : []),
    '--config',
    join(dir, 'ringfence.toml'),
    '--database-url',
    databaseUrl,
  ]
  const child = spawn(argv[0] as string, argv.slice(1), {
    env: { PATH: process.env.PATH, HOME: dir, RINGFENCE_HOME: join(dir, 'state'), ...env },
    cwd: dir,
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let said = ''
  child.stderr?.on('data', (chunk) => (said += chunk))
  const ended = new Promise<number | null>((resolve) => child.once('exit', (code) => resolve(code)))
  const line = await Promise.race([
    new Promise<string>((resolve) =>
      createInterface({ input: child.stdout as NodeJS.ReadableStream }).once('line', resolve),
    ),
    ended.then(() => {
      throw new Error(`node ${name} ended at once: ${said}`)
    }),
  ])
  const told = JSON.parse(line) as { url: string; pid: number; key?: string }
  return {
    name,
    dir,
    child,
    pid: told.pid,
    url: told.url,
    key: told.key ?? '',
    said: () => said,
    ended,
    call: (method, path, options = {}) => callAt(told.url, method, path, options),
  }
}
