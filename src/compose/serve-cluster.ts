import { statfsSync } from 'node:fs'
import { cpus, hostname, totalmem } from 'node:os'
import { FleetTrailReader } from '../audit/fleet-read.ts'
import { StoreTrailReader } from '../audit/store-read.ts'
import {
  authorityOf,
  ClusterKey,
  chainKeysOf,
  issueNodeCertificate,
  type NodeCertificate,
  registerChain,
} from '../cluster/identity.ts'
import { settleLostNode } from '../cluster/lost-node.ts'
import { ClusterNode } from '../cluster/node.ts'
import { Owners } from '../cluster/owners.ts'
import { refusalOf } from '../cluster/placement.ts'
import { nodeFor } from '../cluster/rendezvous.ts'
import { type Capacity, NoRoom, Reservations } from '../cluster/reservations.ts'
import type { ClusterConfig, Config } from '../model/config.ts'
import { SandboxError } from '../model/errors.ts'
import type { Spec } from '../model/spec.ts'
import { secretIn } from '../server/auth.ts'
import { CreateRouter, type CreateRouterParts } from '../server/cluster/create-router.ts'
import { listenForPeers, PeerConnections, type PeerListener } from '../server/cluster/peers.ts'
import { ClusterRouter } from '../server/cluster/router.ts'
import { SignedAddresses } from '../server/cluster/signed-addresses.ts'
import { consolePrincipal } from '../server/console/auth.ts'
import type { ListenOptions } from '../server/listen.ts'
import type { ServerParts } from '../server/parts.ts'
import type { NodeFacts } from '../store/nodes.ts'
import { openStore } from '../store/open.ts'
import { liveSandboxIds, type SandboxRow } from '../store/sandboxes.ts'
import type { Store } from '../store/sql.ts'
import { findVolume, volumeById } from '../store/volumes.ts'
import type { Principal } from '../supervisor/access/keys.ts'
import type { SandboxTokens } from '../supervisor/access/sandbox-tokens.ts'
import type { Instance } from '../supervisor/instance.ts'
import type { Fleet } from '../supervisor/supervisor-parts.ts'
import type { VolumeMoves } from '../supervisor/volumes/volume-moves.ts'
import { Drain } from './cluster-drain.ts'
import { carryingOut, restartOwn, restartsOf } from './cluster-takeover.ts'
import { nodeOfVolume } from './cluster-volumes.ts'
import { clusterKeyFile, type Ringfence } from './compose.ts'

/** This server as a member of a cluster: what is opened before its services, and what connects them afterwards. */
export type Membership = {
  readonly key: ClusterKey
  readonly node: ClusterNode
  readonly certificate: NodeCertificate
  readonly peers: PeerConnections
  readonly listener: PeerListener
  readonly owners: Owners
  readonly reservations: Reservations
  readonly facts: () => NodeFacts
  readonly config: ClusterConfig
  /** What stays on this node while it drains. */
  readonly staying: { list: NonNullable<NodeFacts['staying']> }
}

const LEASE_SECS = 10
const leaseOf = ({ lease_secs = LEASE_SECS }: ClusterConfig): number => lease_secs * 1000

/**
 * INVARIANT: shorter than the lease. A node that stops in the middle of a transaction holds the lock of its own row, and the node that
 * fences it would wait for the end of that transaction.
 */
export const idleMsIn = ({ cluster }: Config): number | undefined => cluster && leaseOf(cluster) / 2
const DISK_SHARE = 0.9
const LOOK_MS = 60_000

/** What a server needs to join. */
export type JoinOptions = {
  readonly ringfence: Ringfence
  readonly store: Store
  readonly databaseUrl: string | undefined
  readonly instance: Instance
  readonly chain: { readonly id: string; readonly publicKey: string }
  readonly role?: 'all' | 'api' | 'node' | undefined
  readonly version: string
  readonly log: (line: string) => void
}

/** Joins the cluster of the database; undefined if the configuration has no `[cluster]`. */
export async function joinCluster(
  options: JoinOptions,
  closing: (() => Promise<void> | void)[],
): Promise<Membership | undefined> {
  const { ringfence, store, databaseUrl, instance } = options
  const { cluster: config } = ringfence.config
  if (!config) {
    if (options.role === undefined) return undefined
    throw new SandboxError('invalid-config', '--role needs [cluster] in the configuration')
  }
  if (store.kind !== 'postgres')
    throw new SandboxError('invalid-config', 'a cluster needs PostgreSQL', {
      hint: 'give --database-url, or remove [cluster] from the configuration',
    })
  const key = ClusterKey.load(clusterKeyFile(ringfence.config, ringfence.stateDir))
  if (!key)
    throw new SandboxError('invalid-config', 'this machine has not joined the cluster', {
      hint: 'run `ringfence cluster init` on the first machine, `ringfence cluster join TOKEN` on the others',
    })
  await registerChain(store, key, options.chain)
  const certificate = issueNodeCertificate(await authorityOf(store, key), instance.id)
  const listener = await listenForPeers(certificate, addressOf(config))
  closing.push(() => listener.close())
  const leaseMs = leaseOf(config)
  const leases = await openStore({
    stateDir: ringfence.stateDir,
    databaseUrl,
    answerMs: Math.max(500, leaseMs / 3),
    idleMs: leaseMs / 2,
  })
  closing.push(() => leases.close())
  const reservations = new Reservations(capacityOf(config, ringfence))
  const staying: Membership['staying'] = { list: [] }
  const own = factsOf(reservations, ringfence, config, closing)
  const facts = (): NodeFacts => ({ ...own(), ...(staying.list.length > 0 && { staying: staying.list }) })
  const node = await ClusterNode.register({
    store,
    leases,
    facts,
    log: options.log,
    self: {
      id: instance.id,
      role: options.role ?? config.role ?? 'all',
      name: config.name ?? hostname(),
      url: listener.url,
      fingerprint: certificate.fingerprint,
      chain: options.chain.id,
      version: options.version,
      leaseMs,
      facts: facts(),
    },
  })
  const peers = new PeerConnections(certificate)
  closing.push(() => peers.close())
  closing.push(() => node.leave())
  node.start()
  return {
    key,
    node,
    certificate,
    peers,
    listener,
    owners: new Owners(store),
    reservations,
    facts,
    config,
    staying,
  }
}

function addressOf({ listen = '127.0.0.1:0', url }: ClusterConfig) {
  const [, host, port] = /^(.+):(\d{1,5})$/.exec(listen) ?? []
  if (host === undefined)
    throw new SandboxError('invalid-config', `[cluster] listen: \`${listen}\` is not \`host:port\``)
  if (url !== undefined && !(URL.canParse(url) && new URL(url).protocol === 'https:'))
    throw new SandboxError('invalid-config', `[cluster] url: \`${url}\` is not \`https://host:port\``)
  if (url === undefined && /^(0\.0\.0\.0|\[?::\]?)$/.test(host))
    throw new SandboxError('invalid-config', '[cluster] listen is every address of this machine', {
      hint: 'say with `url` by which one the other nodes reach it',
    })
  return { host: host.replace(/^\[|\]$/g, ''), port: Number(port), url }
}

function capacityOf(config: ClusterConfig, { stateDir, config: { server = {} } }: Ringfence): Capacity {
  const { overcommit = {}, reserve = {} } = config
  const { bavail, bsize } = statfsSync(stateDir)
  const diskMb = (bavail * bsize * DISK_SHARE) / 2 ** 20
  return {
    cpus: (config.cpus ?? cpus().length) * (overcommit.cpu ?? 8),
    memoryMb: Math.floor((config.memory_mb ?? totalmem() / 2 ** 20) * (overcommit.memory ?? 1)),
    diskMb: Math.floor((config.disk_mb ?? diskMb) * (overcommit.disk ?? 10)),
    sandboxes: server.max_sandboxes ?? 1000,
    perSandbox: {
      cpus: reserve.cpus ?? 0.1,
      memoryMb: reserve.memory_mb ?? 64,
      diskMb: reserve.disk_mb ?? 64,
    },
  }
}

/** What this node says about itself; its backends are probed in the background. */
function factsOf(
  reservations: Reservations,
  ringfence: Ringfence,
  { labels = {} }: ClusterConfig,
  closing: (() => void)[],
) {
  const { registry } = ringfence
  const available = new Set<string>()
  // Each backend counts once its own probe ends: a slow one does not hold back the others.
  const look = (): void => {
    for (const { name } of registry.list())
      void registry.probe(name).then(
        (probe) => (probe.available ? available.add(name) : available.delete(name)),
        () => available.delete(name),
      )
  }
  look()
  // A backend may be away for a while; results are cached as long as nothing changes.
  const looking = setInterval(look, LOOK_MS).unref()
  closing.push(() => clearInterval(looking))
  return (): NodeFacts => ({
    ...reservations.facts(),
    backends: [...available].sort(),
    labels,
    marksVolumes: true,
  })
}

/** Failures of a create that say something about the node, and not about the request. */
const OWN_FAILURES: readonly unknown[] = ['launch-failed', 'resource-exhausted', 'internal']

/** A create that was placed by hand, or by a node that knows other labels, must fit here too. */
function assertFits({ id, role, nodes }: ClusterNode, { placement }: Spec): void {
  const own = nodes.find((one) => one.id === id)
  const need = { cpus: 0, memoryMb: 0, diskMb: 0, ...placement }
  const why = own && refusalOf({ ...own, role, facts: { ...own.facts, failures: 0 } }, need)
  if (why === 'role' || why === 'node' || why === 'labels' || why === 'cordoned') throw new NoRoom(why)
}

/** What the supervisor asks of the cluster. */
export const fleetOf = ({ node, reservations }: Membership): Fleet => ({
  assertHeld: () => node.assertHeld(),
  reserve: (spec: Spec) => {
    assertFits(node, spec)
    return reservations.reserve(spec)
  },
  created: (error) => {
    const code = error instanceof SandboxError ? error.code : error === undefined ? undefined : 'internal'
    reservations.note(OWN_FAILURES.includes(code))
  },
  // Nobody else starts a sandbox without `restart`: it may wait, frozen, as long as this process lives and was not fenced.
  leaseMs: ({ restart }) => (restart ? node.leaseLeftMs : node.isFenced ? 0 : node.leaseMs),
})

/** How long a node that was fenced takes to end its sandboxes; the rest ends with its process. */
const ABANDON_MS = 5000

/** Connects the services with the cluster: what happens to sandboxes when a lease ends, here or elsewhere. */
export function enlist(
  membership: Membership,
  parts: ServerParts,
  {
    store,
    moves,
    onFenced,
  }: { readonly store: Store; readonly moves: VolumeMoves; readonly onFenced: () => void },
): Drain {
  const { node, owners, peers, listener } = membership
  const { supervisor, log } = parts
  const restarts = restartsOf(membership, parts, store)
  const drain = new Drain(membership, parts, { restarts, moves })
  const restartReleased = (): void =>
    void restartOwn(membership, restarts, { store, isLive: (id) => supervisor.has(id), log }).catch(
      (error: Error) => log(`sandboxes of an earlier run are not started again yet: ${error.message}`),
    )
  restartReleased()
  const renewing = setInterval(() => supervisor.renewLeases(), node.leaseMs / 4).unref()
  node.on({
    lapse: () => supervisor.freeze(true),
    regain: () => {
      supervisor.freeze(false)
      restartReleased()
    },
    renew: () => {
      supervisor.renewLeases()
      drain.check()
    },
    // A request that waits for a node which is gone fails now, and not after a time-out.
    look: (nodes) => {
      peers.keepOnly(nodes)
      listener.keepOnly(nodes)
    },
    fence: () => {
      clearInterval(renewing)
      const late = new Promise((resolve) => setTimeout(resolve, ABANDON_MS).unref())
      void Promise.race([supervisor.abandon(), late]).finally(onFenced)
    },
    async settle(lost) {
      owners.forgetNode(lost.id)
      const restart = (rows: readonly SandboxRow[], reason: string) => restarts.all(rows, reason)
      const { failed, restarted } = await settleLostNode({ store, trail: parts.record, restart }, lost)
      log(`node ${lost.name}: ${failed} sandboxes are reported as failed, ${restarted} start on other nodes`)
    },
  })
  return drain
}

/** Reads the audit log: in a cluster that of all nodes. */
export const trailReader = (
  { stateDir }: Ringfence,
  store: Store,
  membership: Membership | undefined,
): StoreTrailReader =>
  membership
    ? new FleetTrailReader(stateDir, store, () => chainKeysOf(store, membership.key))
    : new StoreTrailReader(stateDir, store)

/** Whether this node does a piece of work that one of the nodes that run does. */
export const isChosen = ({ node }: Membership, name: string): boolean =>
  node.isHeld &&
  nodeFor(
    name,
    node.nodes.filter(({ state }) => state === 'up'),
  )?.id === node.id

/** Whether this node delivers a webhook. */
export const deliversIn = (membership: Membership | undefined): ((id: string) => boolean) | undefined =>
  membership && ((id) => isChosen(membership, id))

/** What engines and people watch; per node, so that they add up. */
export function describeCluster({ node, facts }: Membership, { metrics }: ServerParts): void {
  metrics.onRead(() => {
    const { used, sandboxes, backends, ...all } = facts()
    metrics.gauge(
      'ringfence_node_lease_age_seconds',
      'Time since this node renewed its lease.',
      {},
      node.leaseAgeMs / 1000,
    )
    metrics.gauge('ringfence_node_lease_held', 'Whether this node holds its lease.', {}, node.isHeld ? 1 : 0)
    const isOpen = node.schedule === 'open' && node.role !== 'api' && node.isHeld
    for (const backend of backends)
      metrics.gauge(
        'ringfence_free_slots',
        'Sandboxes that this node would still take, by backend.',
        { backend },
        isOpen ? sandboxes - used.sandboxes : 0,
      )
    for (const [what, whole, part] of [
      ['cpus', all.cpus, used.cpus],
      ['memory_mb', all.memoryMb, used.memoryMb],
      ['disk_mb', all.diskMb, used.diskMb],
    ] as const) {
      metrics.gauge(
        'ringfence_node_capacity',
        'What the sandboxes of this node may reserve.',
        { what },
        whole,
      )
      metrics.gauge(
        'ringfence_node_reserved',
        'What the sandboxes of this node have reserved.',
        { what },
        part,
      )
    }
    for (const state of ['up', 'lost', 'left'] as const) {
      const count = node.nodes.filter((one) => one.state === state).length
      metrics.gauge('ringfence_cluster_nodes', 'Nodes by state, as this one sees them.', { state }, count)
    }
  })
}

const ID_OF_VOLUME = /^vol_[0-9a-f]+$/

type IncomingHttpHeaders = Parameters<CreateRouterParts['volumeOwner']>[0]

/** How the server listens: requests go to the nodes that own what they are about. */
export function clusterListening(
  membership: Membership,
  parts: ServerParts,
  {
    store,
    tokens,
    moves,
  }: { readonly store: Store; readonly tokens: SandboxTokens; readonly moves: VolumeMoves },
): ListenOptions['cluster'] {
  const { node, peers, owners, reservations, facts, config, listener } = membership
  const { supervisor, metrics, log, templates } = parts
  // Says only which node answers; that node authenticates the caller itself.
  const principalOf = async (headers: Headers): Promise<Principal | undefined> =>
    (await consolePrincipal(parts.sessions, headers, 'GET')) ??
    (await parts.keys.principalOf(secretIn(headers) ?? ''))
  const tenantIn = async (headers: IncomingHttpHeaders): Promise<string | undefined> =>
    (await principalOf(new Headers(definedHeaders(headers))))?.tenant
  const volumeOwner = async (headers: IncomingHttpHeaders, idOrName: string): Promise<string | undefined> => {
    const tenant = ID_OF_VOLUME.test(idOrName) ? undefined : await tenantIn(headers)
    const row =
      tenant === undefined ? await volumeById(store, idOrName) : await findVolume(store, tenant, idOrName)
    // SECURITY: an error names what the caller named, because the volume may be another tenant's.
    return row && nodeOfVolume(membership, moves, { ...row, name: idOrName.slice(0, 128) })
  }
  const templateOwner = async (headers: IncomingHttpHeaders, name: string): Promise<string | undefined> => {
    const tenant = await tenantIn(headers)
    const found = tenant === undefined ? undefined : await templates.find(tenant, name)
    return found?.data.image === undefined ? undefined : found.data.node
  }
  const creates = new CreateRouter({
    node,
    peers,
    reservations,
    facts,
    volumeOwner,
    templateOwner,
    principalOf,
    waiting: config.max_waiting ?? 256,
    waitMs: (config.wait_secs ?? 10) * 1000,
    metrics,
  })
  const router = new ClusterRouter({
    node,
    peers,
    owners,
    creates,
    signed: new SignedAddresses({
      liveHere: () => supervisor.liveIds,
      liveAnywhere: () => liveSandboxIds(store),
      accessToken: (id) => tokens.access(id),
    }),
    isLive: (id) => supervisor.has(id),
    volumeOwner,
    archivePath: (name) => templates.archivePath(name),
    carryOut: carryingOut(parts, store, moves),
    metrics,
    log,
  })
  const admits = async (id: string, fingerprint: string): Promise<boolean> =>
    isKnown(node, id, fingerprint) || (await node.refresh().then(() => isKnown(node, id, fingerprint)))
  return { router, peers: listener, admits }
}

const definedHeaders = (headers: IncomingHttpHeaders): Record<string, string> =>
  Object.fromEntries(
    Object.entries(headers).flatMap(([name, value]) => (typeof value === 'string' ? [[name, value]] : [])),
  )

const isKnown = (node: ClusterNode, id: string, fingerprint: string): boolean =>
  node.peer(id)?.fingerprint === fingerprint
