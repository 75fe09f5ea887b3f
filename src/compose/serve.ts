import { join } from 'node:path'
import { mcpMount } from '../agents.ts'
import { openStoreTrail } from '../audit/open-store-trail.ts'
import type { StoreTrail } from '../audit/store-trail.ts'
import { monotonicMs } from '../host/clock.ts'
import { cgroupHost } from '../host/process/cgroup.ts'
import { endOrphanProcesses, removeOrphanGroups } from '../host/process/orphans.ts'
import { WritableRoots } from '../host/root/writable-roots.ts'
import type { Event, Pace } from '../model/event.ts'
import { consoleMount } from '../server/console/files.ts'
import { e2bMount, e2bUpgrades } from '../server/e2b/mount.ts'
import type { E2bParts } from '../server/e2b/sandbox-request.ts'
import { type ListenOptions, listen, readTls, type Tls } from '../server/listen.ts'
import type { ServerParts } from '../server/parts.ts'
import { openStore } from '../store/open.ts'
import type { Store } from '../store/sql.ts'
import { beginInstance } from '../supervisor/instance.ts'
import { PrivateDirectories } from '../supervisor/private-directories.ts'
import { assertFreeSpace } from '../supervisor/readiness.ts'
import { Templates } from '../supervisor/snapshots/templates.ts'
import type { Pruned } from '../supervisor/telemetry/retention.ts'
import { countRecords, timedStore } from '../supervisor/telemetry/server-metrics.ts'
import type { Drain } from './cluster-drain.ts'
import { sharedArchives } from './cluster-takeover.ts'
import { archiveVolumes, volumeMovesOf } from './cluster-volumes.ts'
import {
  agentPath,
  compose,
  databaseUrl,
  environment,
  packageFile,
  type Ringfence,
  stateDirectory,
} from './compose.ts'
import { type ExecServerMount, execServerMount } from './exec-server-mount.ts'
import { gatewayOf } from './mcp-gateway.ts'
import {
  clusterListening,
  describeCluster,
  enlist,
  idleMsIn,
  isChosen,
  type JoinOptions,
  joinCluster,
  type Membership,
} from './serve-cluster.ts'
import {
  e2bParts,
  type Grown,
  imagesOf,
  type Live,
  loopMetrics,
  partsOf,
  pruneImages,
  retentionOf,
  type ServeOptions,
  volumesOf,
  volumeWatchOf,
} from './serve-parts.ts'
import { secretsOf } from './server-secrets.ts'
import { archiveStoreOf } from './storage.ts'
import { tracerOf } from './tracing.ts'

/** Starts the server: opens its resources in order, and closes them again. */

export type { ServeOptions } from './serve-parts.ts'

/** A server that accepts requests. */
export type RunningServer = {
  readonly url: string
  readonly port: number
  readonly parts: ServerParts
  readonly store: Store
  /** The audit log. */
  readonly trail: Ringfence['trail']
  /** How many unfinished sandboxes of an earlier run were marked as ended. */
  readonly recovered: number
  readonly reload: () => Promise<{ readonly policy: string }>
  /** Runs the hourly retention pass now. */
  readonly prune: () => Promise<Pruned>
  /** Accepts no new work, waits for commands until the deadline, then closes. */
  readonly drain: () => Promise<void>
  /** Closes at once. */
  readonly close: () => Promise<void>
}

/** Resources to close, in the order in which they were opened. */
type Closing = (() => Promise<void> | void)[]

/** Closes every resource even if some fail or hang: an unreachable store must not block the shutdown. */
async function undo(closing: Closing, log: (line: string) => void = () => {}): Promise<void> {
  for (const close of closing.splice(0).reverse()) {
    const late = new Promise<void>((resolve) => setTimeout(resolve, CLOSE_MS).unref())
    const closed = Promise.resolve().then(close)
    await Promise.race([closed, late]).catch((error: Error) => log(`while closing: ${error.message}`))
    closed.catch(() => {})
  }
}
/** How long each resource may take to close. */
const CLOSE_MS = 30_000

/** Starts a server; resolves when it accepts requests. */
export async function startServer(options: ServeOptions = {}): Promise<RunningServer> {
  const closing: Closing = []
  try {
    return await serve(options, await grow(options, closing), closing)
  } catch (error) {
    await undo(closing)
    throw error
  }
}

/** Opens everything below the routes: state directory, composition, store, audit log. */
async function grow(options: ServeOptions, closing: Closing): Promise<Grown> {
  const stateDir = stateDirectory(options.env ?? environment())
  const instance = beginInstance(stateDir)
  closing.push(() => instance.release())
  let hash = (): string => ''
  let opened: StoreTrail | undefined
  const append = async (event: Event, pace?: Pace): Promise<void> => {
    if (!opened) throw new Error('the audit log is not open yet')
    await opened.append({ ...event, policy: hash() }, pace)
  }
  let membership: Membership | undefined
  const ringfence = await compose({
    ...options,
    stays: true,
    trail: { append, close: async () => {} },
    mayAct: () => membership?.node.isHeld ?? true,
  })
  hash = ringfence.policyHash
  closing.push(() => ringfence.close())
  const database = options.databaseUrl ?? databaseUrl(ringfence.config, ringfence.env)
  const answerMs = (ringfence.config.server?.database_timeout_secs ?? 10) * 1000
  const { metrics, tracer } = await telemetryOf(ringfence, options, closing)
  const untimed = await openStore({
    stateDir,
    databaseUrl: database,
    answerMs,
    idleMs: idleMsIn(ringfence.config),
  })
  const store = timedStore(untimed, metrics)
  closing.push(() => store.close())
  // The last record needs the lease, so a node leaves its cluster after the audit log is closed.
  const late: Closing = []
  closing.push(() => undo(late))
  const trail = await openStoreTrail({ home: stateDir, store })
  opened = trail
  countRecords(metrics, trail)
  options.journal?.follow(trail)
  closing.push(() => trail.close())
  membership = await joinCluster(joiningOf(options, { ringfence, store, trail, instance, database }), late)
  const secrets = await secretsOf(ringfence, store, membership, options.log)
  const privateDirectories = new PrivateDirectories(join(stateDir, 'homes'))
  const roots = new WritableRoots(join(stateDir, 'roots'), agentPath())
  const kept = await archivesOf(ringfence, store, membership)
  const volumes = volumesOf(ringfence, store, {
    dir: join(stateDir, 'volumes'),
    node: membership?.node.id,
  })
  const images = imagesOf(ringfence, join(stateDir, 'image-trees'))
  const gateway = gatewayOf(ringfence, options.version ?? '0.1.0')
  closing.push(() => gateway.close())
  return {
    metrics,
    tracer,
    ringfence,
    store,
    trail,
    // In a cluster the database counts the epochs.
    instance: membership ? { ...instance, epoch: membership.node.epoch } : instance,
    ...secrets,
    privateDirectories,
    roots,
    ...kept,
    volumes,
    images,
    gateway,
    membership,
  }
}

async function telemetryOf(
  ringfence: Ringfence,
  { version = '0.1.0' }: ServeOptions,
  closing: Closing,
): Promise<Pick<Grown, 'metrics' | 'tracer'>> {
  const tracer = await tracerOf(ringfence, version)
  closing.push(() => tracer.close())
  return { metrics: loopMetrics(), tracer }
}

async function archivesOf(
  ringfence: Ringfence,
  store: Store,
  membership: Membership | undefined,
): Promise<Pick<Grown, 'templates' | 'archives'>> {
  const archives = await archiveStoreOf(ringfence, store, membership)
  const shared = sharedArchives(membership, archives)
  return {
    archives,
    templates: new Templates(store, join(ringfence.stateDir, 'templates'), {
      shared,
      assertFreeSpace: () => assertFreeSpace(ringfence.stateDir),
    }),
  }
}

const joiningOf = (
  { version = '0.1.0', role, log = () => {} }: ServeOptions,
  {
    trail,
    database,
    ...opened
  }: Pick<Grown, 'ringfence' | 'store' | 'trail' | 'instance'> & {
    readonly database: string | undefined
  },
): JoinOptions => ({
  ...opened,
  databaseUrl: database,
  chain: { id: trail.chain, publicKey: trail.publicKey },
  role,
  version,
  log,
})

async function serve(options: ServeOptions, grown: Grown, closing: Closing): Promise<RunningServer> {
  const { ringfence, store } = grown
  const live: Live = { config: ringfence.config }
  const missing = grown.roots.unavailable()
  if (missing) options.log?.(`sandboxes have a read-only root: ${missing.reason} (${missing.fix})`)
  const e2b = e2bParts(grown, live, { approvals: () => parts.approvals, version: options.version })
  const parts: ServerParts = partsOf(options, grown, live, e2b)
  const retention = retentionOf(options, grown, live, parts.supervisor)
  closing.push(() => parts.webhooks.close())
  closing.push(() => parts.feed.close())
  closing.push(() => parts.streams.close())
  closing.push(() => retention.close())
  const watch = volumeWatchOf(grown, parts)
  closing.push(() => watch.close())
  closing.push(() => parts.volumeFiles.close())
  const recovered = await recover(parts, grown)
  const { membership } = grown
  const moves = membership && volumeMovesOf(membership, parts, grown)
  const onFenced = options.onFenced ?? (() => {})
  const moving = membership && moves && enlist(membership, parts, { store, moves, onFenced })
  const cluster = membership && moves && clusterListening(membership, parts, { ...grown, moves })
  if (membership && moves && grown.archives) closing.push(archiveVolumes(membership, moves, parts.log))
  if (membership) describeCluster(membership, parts)
  const codex = execServerMount()
  closing.push(() => codex.close())
  const listening = await listen(parts, { ...listenOptions(options, grown, e2b, codex), cluster })
  closing.push(() => listening.close())
  live.prepareTls = () => {
    const tls = tlsOf(options, grown)
    return () => tls && listening.useTls(tls)
  }
  retention.start()
  watch.start()
  closing.push(everyHour(() => pruneImages(grown, parts)))
  if (membership) closing.push(everyHour(() => sweepArchives(membership, grown)))
  const close = once(async () => {
    await parts.supervisor.drain(0)
    // Tell clients about the shutdown first, so that they do not reconnect to a closing store.
    listening.stop()
    await parts.streams.leave()
    await undo(closing, parts.log)
  })
  return {
    url: listening.url,
    port: listening.port,
    parts,
    store,
    trail: ringfence.trail,
    recovered,
    reload: parts.reload,
    prune: () => retention.pass(),
    drain: once(async () => {
      await drain(parts, (ringfence.config.server?.drain_secs ?? 30) * 1000, moving)
      await close()
    }),
    close,
  }
}

/** Marks sandboxes of an earlier run as ended. Returns how many there were. */
async function recover(parts: ServerParts, { ringfence, privateDirectories }: Grown): Promise<number> {
  reapOrphans()
  reapContainers(ringfence)
  const recovered = await parts.supervisor.recover((keyId) => parts.keys.principalById(keyId))
  await privateDirectories.sweep(parts.supervisor.liveIds)
  void parts.volumes.sweep().catch(() => {})
  void parts.images.sweep().catch(() => {})
  void parts.reviews.settle().catch(() => {})
  parts.webhooks.deliver()
  return recovered
}

/** Cleans up now and again a little later, because a crash may leave containers that are still being created. */
function reapOrphans(): void {
  if (process.platform !== 'linux') return
  const reap = (): void => {
    endOrphanProcesses()
    removeOrphanGroups(cgroupHost())
  }
  // A failed cleanup, for example without free descriptors, must not stop the server; it is retried.
  const reapOrRetry = (): void => {
    try {
      reap()
    } catch {
      setTimeout(reapOrRetry, REAP_RETRY_MS).unref()
    }
  }
  reap()
  for (const later of REAP_AGAIN_MS) setTimeout(reapOrRetry, later).unref()
}
/** In the background: a hung engine must not block the server's start. */
function reapContainers({ registry }: Ringfence): void {
  for (const backend of registry.list()) void backend.reap?.().catch(() => {})
}
const REAP_AGAIN_MS = [500, 2000, 4000]
const REAP_RETRY_MS = 1000

/** Responses continue while commands end; new connections and new work are rejected. */
async function drain(parts: ServerParts, deadlineMs: number, moving: Drain | undefined): Promise<void> {
  const began = monotonicMs()
  // What may move to another node of a cluster does so first.
  const late = new Promise((resolve) => setTimeout(resolve, deadlineMs).unref())
  await Promise.race([moving?.moveAll(), late])
  await parts.supervisor.drain(Math.max(0, deadlineMs - (monotonicMs() - began)))
  // Lets the last responses be sent.
  await new Promise((resolve) => setTimeout(resolve, 50))
}

/** The certificate, read now. */
function tlsOf(options: ServeOptions, { ringfence }: Pick<Grown, 'ringfence'>): Tls | undefined {
  const { server = {} } = ringfence.config
  const cert = options.tlsCert ?? server.tls_cert
  const key = options.tlsKey ?? server.tls_key
  return cert && key ? readTls(cert, key) : undefined
}

function listenOptions(
  options: ServeOptions,
  { ringfence, gateway, membership }: Grown,
  e2b: E2bParts,
  codex: ExecServerMount,
): ListenOptions {
  const { server = {} } = ringfence.config
  const sessionPrefix = membership && `${membership.node.id}.`
  return {
    host: options.host ?? server.host ?? '127.0.0.1',
    port: options.port ?? server.port ?? 4200,
    tls: tlsOf(options, { ringfence }),
    insecureBind: options.insecureBind,
    version: options.version ?? '0.1.0',
    mounts: [
      mcpMount(options.version ?? '0.1.0', { gateway, sessionPrefix }),
      codex.mount,
      e2bMount(e2b),
      consoleMount(packageFile('dist', 'web')),
      ...(options.mounts ?? []),
    ],
    upgrades: [codex.upgrade, e2bUpgrades(e2b), ...(options.upgrades ?? [])],
  }
}

/** Removes archives that nothing needs any more; what all nodes share, one of them removes. */
async function sweepArchives(membership: Membership, { templates, archives }: Grown): Promise<void> {
  const before = Date.now() - 3_600_000
  if (isChosen(membership, 'archives')) {
    await templates.sweepMoves(before)
    await archives?.collect()
  }
  await templates.sweep(before)
}

/** Now and every hour. Returns what ends it. */
function everyHour(work: () => Promise<void>): () => void {
  const run = (): void => void work().catch(() => {})
  run()
  const timer = setInterval(run, 3_600_000).unref()
  return () => clearInterval(timer)
}

function once(work: () => Promise<void>): () => Promise<void> {
  let done: Promise<void> | undefined
  return () => {
    done ??= work()
    return done
  }
}
