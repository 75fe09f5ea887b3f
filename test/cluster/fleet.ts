import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { ClusterKey, initCluster } from '../../src/cluster/identity.ts'
import { type RunningServer, type ServeOptions, startServer } from '../../src/compose/serve.ts'
import { openStore } from '../../src/store/open.ts'
import type { Scope } from '../../src/supervisor/access/keys.ts'
import { answerContract } from '../server/answer-contract.ts'
import { type Answer, type CallOptions, callAt } from '../server/test-server.ts'

/** Servers of one cluster in this process, each with its own state directory. */

type FleetNode = {
  readonly server: RunningServer
  readonly dir: string
  readonly id: string
  readonly name: string
  readonly isFenced: () => boolean
  readonly said: string[]
  readonly call: (method: string, path: string, options?: CallOptions) => Promise<Answer>
}

export type Fleet = {
  readonly databaseUrl: string
  readonly admin: string
  readonly clusterKey: ClusterKey
  readonly nodes: readonly FleetNode[]
  readonly key: (scopes: readonly Scope[], tenant?: string) => Promise<string>
  /** Starts one more node, or the node of a state directory again. */
  readonly add: (config?: NodeConfig) => Promise<FleetNode>
  readonly close: () => Promise<void>
}

export type NodeConfig = {
  readonly name?: string
  readonly dir?: string
  readonly role?: ServeOptions['role']
  readonly leaseSecs?: number
  /** More lines of [cluster], and further tables. */
  readonly cluster?: string
  readonly rest?: string
  readonly env?: Readonly<Record<string, string>>
  readonly version?: string
}

/** Makes the database a cluster's; returns its key. */
export async function newCluster(databaseUrl: string): Promise<ClusterKey> {
  const store = await openStore({ stateDir: tmpdir(), databaseUrl })
  const key = ClusterKey.create()
  await initCluster(store, key)
  await store.close()
  return key
}

export async function startFleet(databaseUrl: string, configs: readonly NodeConfig[]): Promise<Fleet> {
  const key = await newCluster(databaseUrl)
  const nodes: FleetNode[] = []
  const add = async (config: NodeConfig = {}): Promise<FleetNode> => {
    const node = await startNode(databaseUrl, key, { name: `n${nodes.length + 1}`, ...config })
    nodes.push(node)
    return node
  }
  for (const config of configs) await add(config)
  const [first] = nodes as [FleetNode]
  const newKey = async (scopes: readonly Scope[], tenant?: string): Promise<string> =>
    (await first.server.parts.keys.create({ scopes, tenant })).secret
  const admin = await newKey(['create', 'exec', 'read', 'admin'])
  for (const node of nodes) await node.server.parts.cluster?.node.refresh()
  return {
    databaseUrl,
    clusterKey: key,
    admin,
    nodes,
    key: newKey,
    add,
    close: async () => {
      await Promise.all(nodes.map(({ server }) => server.close()))
      for (const { dir } of nodes) rmSync(dir, { recursive: true, force: true })
    },
  }
}

async function startNode(
  databaseUrl: string,
  key: ClusterKey,
  { name = 'n', dir = mkdtempSync(join(tmpdir(), 'rf-node-')), role, leaseSecs = 3, ...more }: NodeConfig,
): Promise<FleetNode> {
  const state = join(dir, 'state')
  mkdirSync(state, { recursive: true, mode: 0o700 })
  key.save(join(state, 'cluster.key'))
  const file = join(dir, 'ringfence.toml')
  writeFileSync(
    file,
    `${more.rest ?? ''}\n[cluster]\nname = "${name}"\nlease_secs = ${leaseSecs}\n${more.cluster ?? ''}\n`,
  )
  let isFenced = false
  const said: string[] = []
  const server = await startServer({
    port: 0,
    config: file,
    env: { PATH: process.env.PATH, HOME: dir, RINGFENCE_HOME: state, ...more.env },
    cwd: dir,
    databaseUrl,
    role,
    ...(more.version && { version: more.version }),
    mounts: [answerContract],
    log: (line) => said.push(line),
    onFenced: () => {
      isFenced = true
    },
  })
  return {
    server,
    dir,
    name,
    said,
    id: server.parts.cluster?.node.id ?? '',
    isFenced: () => isFenced,
    call: (method, path, options) => callAt(server.url, method, path, options ?? {}),
  }
}
