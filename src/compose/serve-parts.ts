import { monitorEventLoopDelay } from 'node:perf_hooks'
import type { StoreTrail } from '../audit/store-trail.ts'
import { NodeAdmin } from '../cluster/node-admin.ts'
import { safeFetch } from '../egress/fetch/safe-fetch.ts'
import { resolveFor } from '../egress/upstream/names.ts'
import { Review, reviewedId } from '../host/review/review.ts'
import type { WritableRoots } from '../host/root/writable-roots.ts'
import type { CLUSTER_ROLES, Config } from '../model/config.ts'
import { parseSpec, type Spec } from '../model/spec.ts'
import type { Tracer } from '../model/tracer.ts'
import { lentTo } from '../policy/grants/secret-lending.ts'
import { approvedHostsOf } from '../policy/network/plan-egress.ts'
import { whyOut } from '../server/console/auth.ts'
import type { E2bParts } from '../server/e2b/sandbox-request.ts'
import { runBuild } from '../server/e2b/templates/build.ts'
import { Builds } from '../server/e2b/templates/builds.ts'
import { OPTIONS as E2B_OPTIONS } from '../server/e2b/views.ts'
import { RateLimit } from '../server/guard.ts'
import type { ListenOptions } from '../server/listen.ts'
import type { ServerParts } from '../server/parts.ts'
import { AuthenticatedStreams } from '../server/streams/authenticated-streams.ts'
import { listNodes } from '../store/nodes.ts'
import { imagesInUse } from '../store/snapshots.ts'
import type { Store } from '../store/sql.ts'
import { Keys, requesterOf } from '../supervisor/access/keys.ts'
import type { SandboxTokens } from '../supervisor/access/sandbox-tokens.ts'
import { Sessions } from '../supervisor/access/sessions.ts'
import { Approvals } from '../supervisor/approvals/approvals.ts'
import type { ArchiveStore } from '../supervisor/archives/archive-store.ts'
import { type Gate, GUEST_HOME } from '../supervisor/gate.ts'
import { Images } from '../supervisor/images/images.ts'
import type { beginInstance } from '../supervisor/instance.ts'
import type { McpGateway } from '../supervisor/mcp/gateway.ts'
import { PolicyService } from '../supervisor/policy-service.ts'
import { openWithPrivateDirectories, type PrivateDirectories } from '../supervisor/private-directories.ts'
import { assertFreeSpace, readinessProblems } from '../supervisor/readiness.ts'
import type { PoolSize } from '../supervisor/sandbox-pool.ts'
import { Reviews } from '../supervisor/snapshots/reviews.ts'
import { judged, openFrom, Snapshots } from '../supervisor/snapshots/snapshots.ts'
import type { Templates } from '../supervisor/snapshots/templates.ts'
import { Supervisor } from '../supervisor/supervisor.ts'
import { Feed } from '../supervisor/telemetry/feed.ts'
import type { Journal } from '../supervisor/telemetry/journal.ts'
import { Metrics } from '../supervisor/telemetry/metrics.ts'
import { Retention } from '../supervisor/telemetry/retention.ts'
import { countedPost } from '../supervisor/telemetry/server-metrics.ts'
import { UsageHistory } from '../supervisor/telemetry/usage-history.ts'
import type { WebhookSecrets } from '../supervisor/telemetry/webhook-secrets.ts'
import { type Post, Webhooks } from '../supervisor/telemetry/webhooks.ts'
import { openWithVolumes } from '../supervisor/volumes/open-volumes.ts'
import { VolumeFiles } from '../supervisor/volumes/volume-files.ts'
import { VolumeWatch } from '../supervisor/volumes/volume-watch.ts'
import { Volumes } from '../supervisor/volumes/volumes.ts'
import { agentPath, type ComposeOptions, guestFile, newId, type Ringfence, skillParts } from './compose.ts'
import { backendReports, doctorReport } from './doctor.ts'
import { e2bGateway } from './mcp-gateway.ts'
import { operatorViews, SANDBOXES, sandboxesOf } from './operator-views.ts'
import { deliversIn, fleetOf, type Membership, trailReader } from './serve-cluster.ts'
import { awsSigner } from './storage.ts'

/** Constructs the services that the server's routes use. */

export type ServeOptions = ComposeOptions & {
  readonly host?: string | undefined
  readonly port?: number | undefined
  readonly databaseUrl?: string | undefined
  readonly tlsCert?: string | undefined
  readonly tlsKey?: string | undefined
  readonly insecureBind?: boolean | undefined
  readonly log?: (line: string) => void
  /** A line for each request and record, for programs. */
  readonly journal?: Journal | undefined
  /** Other APIs on the same port; see `server/app.ts`. */
  readonly mounts?: ListenOptions['mounts']
  readonly upgrades?: ListenOptions['upgrades']
  readonly version?: string
  /** What this server does in a cluster. Default: `role` in [cluster]. */
  readonly role?: (typeof CLUSTER_ROLES)[number] | undefined
  /** Another node has taken over and nothing runs here any more. */
  readonly onFenced?: () => void
}

/** The opened resources that the services need. */
export type Grown = {
  readonly metrics: Metrics
  readonly tracer: Tracer
  readonly ringfence: Ringfence
  readonly store: Store
  readonly trail: StoreTrail
  readonly instance: ReturnType<typeof beginInstance>
  readonly tokens: SandboxTokens
  readonly webhookSecrets: WebhookSecrets
  readonly privateDirectories: PrivateDirectories
  readonly roots: WritableRoots
  readonly templates: Templates
  /** Archives in an object store. */
  readonly archives: ArchiveStore | undefined
  readonly volumes: Volumes
  readonly images: Images
  /** Present if this server is one of several. */
  readonly membership: Membership | undefined
  readonly gateway: McpGateway
}

/** How often requests wake one sandbox. */
const WAKES_PER_SECOND = 0.2
const WAKES_AT_ONCE = 10

/** Default resources of a sandbox at E2B. */
const DISK_MB = 10_240

const readyOf = ({ config }: Pick<Ringfence, 'config'>): number => config.e2b?.ready ?? 1

/** Services that only E2B's routes need. */
export const e2bParts = (
  { ringfence, templates, tokens, privateDirectories, roots, gateway }: Grown,
  live: Live,
  {
    approvals,
    version = '0.1.0',
  }: { readonly approvals: () => Approvals; readonly version?: string | undefined },
): E2bParts => ({
  mcp: e2bGateway(gateway, approvals, version),
  internet: () => live.config.e2b?.internet,
  wakes: new RateLimit(WAKES_PER_SECOND, WAKES_AT_ONCE),
  usage: new UsageHistory((id) => privateDirectories.usedBytes(id)),
  tokens,
  templates,
  builds: new Builds(),
  rootsUnavailable: () => roots.unavailable(),
  record: (event) => ringfence.trail.append(event),
  policyFor: (principal) => ringfence.gate.policyFor(requesterOf(principal)),
  diskMb: DISK_MB,
  secretsFor: (principal) =>
    lentTo(live.config.secret, requesterOf(principal)).map((one) => ({ ...one, since: STARTED })),
  waive: () => live.config.e2b?.waive ?? [],
  ready: readyOf(ringfence),
  kernel: (file) => guestFile('kernels', file),
})

const STARTED = Date.now()

/** Settings that are read again after each reload. */
export type Live = {
  config: Config
  /** Reads and checks the certificate's files; returns what puts them to use. */
  prepareTls?: () => () => void
}

/** Everything that the routes use. */
export function partsOf(options: ServeOptions, grown: Grown, live: Live, e2b: E2bParts): ServerParts {
  const { ringfence, store, trail, templates } = grown
  const server = live.config.server ?? {}
  const { metrics } = grown
  const reader = trailReader(ringfence, store, grown.membership)
  const feed = new Feed(trail, reader)
  const timeoutMs = (): number => (live.config.server?.approval_timeout_secs ?? 300) * 1000
  const approvals = approvalsOf(grown, timeoutMs)
  const supervisor = supervisorOf(grown, { approvals, metrics, server, usage: e2b.usage })
  const volumeFiles = new VolumeFiles({ volumes: grown.volumes, open: opening(grown, approvals), newId })
  grown.volumes.live = () => supervisor.all
  trail.ownerOf = (sandboxId) =>
    supervisor.tenantOfLive(sandboxId) ?? volumeFiles.tenantOf(sandboxId) ?? grown.gateway.tenantOf(sandboxId)
  const keys = new Keys(store, newId)
  const sessions = new Sessions(store, keys)
  const reload = reloading(grown, live)
  const parts: ServerParts = {
    supervisor,
    keys,
    sessions,
    streams: streamsOf(keys, sessions),
    usage: e2b.usage,
    ...ratesOf(server),
    policy: policyOf(ringfence, reload),
    doctor: () => doctorReport(ringfence, grown.membership && (() => listNodes(store))),
    reviews: reviewsOf(grown, supervisor),
    snapshots: new Snapshots({ supervisor, templates, trail: ringfence.trail, newId }),
    templates,
    volumes: grown.volumes,
    images: grown.images,
    volumeFiles,
    approvals,
    webhooks: new Webhooks({
      store,
      secrets: grown.webhookSecrets,
      reader,
      feed,
      newId,
      post: countedPost(metrics, posting(live)),
      isOurs: deliversIn(grown.membership),
      isInForce: async (keyId) => (await keys.principalById(keyId)) !== undefined,
    }),
    trail: reader,
    feed,
    metrics,
    tracer: grown.tracer,
    settings: settingsOf(options, live),
    ...operatorViews({ ringfence, store, keys }),
    backends: () => backendReports(ringfence),
    evaluate: (command, { workspace = '/workspace', cwd = workspace }) =>
      ringfence.judge(command, { workspace, cwd, home: GUEST_HOME }),
    reload,
    trouble: () => readinessProblems(ringfence.stateDir, store, supervisor),
    log: options.log ?? (() => {}),
    journal: options.journal,
    record: ringfence.trail,
    cluster: clusterParts(grown),
    skills: skillParts(ringfence),
    builder: {
      builds: e2b.builds,
      start: (principal, build, body) => void runBuild({ parts, e2b }, principal, build, body),
    },
  }
  return parts
}

const reviewsOf = ({ ringfence }: Grown, supervisor: Supervisor): Reviews =>
  new Reviews({
    supervisor,
    trail: ringfence.trail,
    find: (id) => Review.of(ringfence.stateDir, agentPath(), id),
    ids: () => Review.list(ringfence.stateDir).map(reviewedId),
    waitingOf: (id) => Review.waitingOf(ringfence.stateDir, id),
  })

const clusterParts = ({ membership, store, ringfence }: Grown): ServerParts['cluster'] =>
  membership && { node: membership.node, admin: new NodeAdmin(store, ringfence.trail) }

function policyOf(ringfence: Ringfence, reload: ServerParts['reload']): PolicyService {
  const { policyFile: file, home, current, policyHash: hash, inspect } = ringfence
  return new PolicyService({
    file,
    home,
    current,
    hash,
    reload,
    inspect: (command, directory) => inspect(command, { ...directory, home: GUEST_HOME }),
  })
}

/** Removes old records. */
export const retentionOf = (
  options: ServeOptions,
  grown: Grown,
  live: Live,
  supervisor: Supervisor,
): Retention =>
  new Retention({
    endOldPaused: (now) => supervisor.endOldPaused(now),
    store: grown.store,
    trail: grown.ringfence.trail,
    instance: grown.instance,
    templates: grown.templates,
    keepDays: () => live.config.server?.keep_days ?? KEEP_DAYS,
    reviews: () => Review.list(grown.ringfence.stateDir),
    log: options.log ?? (() => {}),
  })
const KEEP_DAYS = 30

function streamsOf(keys: Keys, sessions: Sessions): AuthenticatedStreams {
  const streams = new AuthenticatedStreams((headers) => whyOut(sessions, headers))
  keys.onRevoked(() => void streams.look())
  sessions.onEnded(() => void streams.look())
  return streams
}

/** Metrics with those of the process itself. */
export function loopMetrics(): Metrics {
  const metrics = new Metrics()
  const delay = monitorEventLoopDelay({ resolution: 10 })
  delay.enable()
  metrics.onRead(() => {
    for (const quantile of [50, 99])
      metrics.gauge(
        'ringfence_loop_delay_seconds',
        'Event loop delay since the last scrape.',
        { quantile: String(quantile / 100) },
        Math.max(0, delay.percentile(quantile) / 1e9 - 0.01),
      )
    metrics.gauge('ringfence_resident_bytes', 'Resident memory of the server.', {}, process.memoryUsage.rss())
    delay.reset()
  })
  return metrics
}

type SupervisorOptions = {
  readonly approvals: Approvals
  readonly metrics: Metrics
  readonly server: NonNullable<Config['server']>
  readonly usage: UsageHistory
}

function supervisorOf(grown: Grown, { approvals, metrics, server, usage }: SupervisorOptions): Supervisor {
  const { ringfence, store, instance, tokens, privateDirectories, templates, volumes } = grown
  return new Supervisor({
    store,
    trail: ringfence.trail,
    instance,
    newId,
    approvals,
    metrics,
    tracer: grown.tracer,
    policyHash: ringfence.policyHash,
    onLive: (entry) => usage.follow(entry),
    open: openFrom(templates, grown.images, openWithVolumes(volumes, opening(grown, approvals), newId)),
    suspended: {
      has: (id) => privateDirectories.has(id),
      remove: (id) => privateDirectories.remove(id),
    },
    keepPausedMs: () => (server.keep_days ?? KEEP_DAYS) * 24 * 3_600_000,
    tokenOf: (id) => tokens.access(id),
    // The directory for pending changes is created for this sandbox and needs no policy check.
    judge: (spec, requester) =>
      void ringfence.gate.plan({ ...judged(spec), review: false, root: 'read-only' }, { requester }),
    assertPermitted: (requester, spec, made) => ringfence.gate.assertPermitted(requester, spec, made),
    assertFreeSpace: () => assertFreeSpace(ringfence.stateDir),
    pool: (server.pool ?? []).map(poolSize),
    prepared: readyOf(ringfence),
    ...(grown.membership && { fleet: fleetOf(grown.membership) }),
    limits: {
      sandboxes: server.max_sandboxes ?? SANDBOXES,
      sandboxesPerKey: server.max_sandboxes_per_key ?? 200,
      sandboxesPerTenant: (tenant) => sandboxesOf(ringfence.current(), tenant),
      opening: server.max_creating ?? 8,
      waiting: server.max_waiting ?? 1024,
      execs: server.max_execs ?? 64,
      background: server.max_background_execs ?? 1024,
      outputBytes: (server.kept_output_mb ?? 128) * 1024 * 1024,
      defaultTtlMs: (server.default_timeout_secs ?? 3600) * 1000,
    },
  })
}

/** Opens sandboxes with their private directories. */
const opening = ({ ringfence, privateDirectories: directories, roots }: Grown, approvals: Approvals) =>
  openWithPrivateDirectories(askingGate(ringfence.gate, approvals), { directories, roots, newId })

/** The volumes of this server; the limits are read again after each reload. */
export const volumesOf = (
  ringfence: Ringfence,
  store: Store,
  place: { readonly dir: string; readonly node: string | undefined },
): Volumes =>
  new Volumes({
    store,
    trail: ringfence.trail,
    ...place,
    newId,
    limits: () => {
      const { volumes = {} } = ringfence.current()
      return {
        defaultMb: volumes.default_mb ?? 10_240,
        maxMb: volumes.max_mb ?? 102_400,
        count: volumes.max_per_tenant ?? 100,
        totalMb: volumes.tenant_mb ?? 1_024_000,
      }
    },
  })

/** The images of this server; the settings are read again after each reload. */
export const imagesOf = (ringfence: Ringfence, dir: string): Images =>
  new Images({
    dir,
    agent: agentPath(),
    assertFreeSpace: () => assertFreeSpace(ringfence.stateDir),
    signer: awsSigner,
    settings: () => {
      const { images = {} } = ringfence.current()
      return {
        mirrors: images.mirror ?? [],
        registries: images.registries,
        maxMb: images.max_mb ?? 10_240,
        maxFiles: images.max_files ?? 500_000,
        maxTenantMb: images.max_mb_per_tenant ?? 40_960,
      }
    },
  })

/** Removes the trees of images that no template and no sandbox needs. */
export async function pruneImages({ store, images }: Grown, { supervisor }: ServerParts): Promise<void> {
  const roots = [...supervisor.all].flatMap(({ sandbox }) =>
    (sandbox?.plan.root?.layers ?? []).flatMap(({ lower }) => lower.map(({ real }) => String(real))),
  )
  await images.prune(await imagesInUse(store), new Set(roots), Date.now() - UNUSED_IMAGE_MS)
}
const UNUSED_IMAGE_MS = 24 * 3_600_000

/** Ends sandboxes that write more to a volume than it may hold. */
export const volumeWatchOf = ({ ringfence, volumes }: Grown, { supervisor }: ServerParts): VolumeWatch =>
  new VolumeWatch({
    volumes,
    trail: ringfence.trail,
    end: ({ id, row }) =>
      supervisor.stop({ keyId: row.keyId, tenant: row.tenant, scopes: [] }, id, 'volume-full'),
  })

const approvalsOf = ({ ringfence, store, instance }: Grown, timeoutMs: () => number): Approvals =>
  new Approvals({
    store,
    trail: ringfence.trail,
    newId,
    instance: instance.id,
    timeoutMs,
    isApprovedHost: (entry, tenant) =>
      approvedHostsOf(ringfence.current(), tenant ?? undefined).includes(entry),
  })

/** The gate, with approvals as the way to ask about hosts. */
const askingGate = (gate: Gate, approvals: Approvals): Pick<Gate, 'open'> => ({
  open: (spec, options = {}) =>
    gate.open(spec, {
      ...options,
      isNetworkGranted: (spec as Spec).metadata?.[E2B_OPTIONS] !== undefined,
      askHost: (question) => {
        const { owner, requester } = options
        const tenant = owner ?? requester?.tenant ?? ''
        return approvals.askHost({ tenant, isOperators: requester?.operator ?? false, question })
      },
    }),
})

const reloading =
  ({ ringfence, gateway }: Grown, live: Live): ServerParts['reload'] =>
  async () => {
    // Before anything changes: an invalid certificate keeps the old configuration.
    const useTls = live.prepareTls?.()
    const { config, secrets } = await ringfence.reload()
    live.config = config
    useTls?.()
    await gateway.reload()
    for (const name of secrets) await ringfence.trail.append({ event: 'Secret', name, state: 'replaced' })
    await ringfence.trail.append({
      event: 'PolicyDecision',
      subject: 'reload',
      action: 'allow',
      reason: 'reloaded',
    })
    return { policy: ringfence.policyHash() }
  }

/** Webhook requests use the same address checks as other requests, and follow no redirects. */
const posting =
  (live: Live): Post =>
  async (url, body, headers, { mayReachPrivate, tenant }) => {
    const allowPrivate = mayReachPrivate ? (live.config.network?.allow_private ?? []) : []
    const limits = { maxRedirects: 0, timeoutMs: 10_000, maxBytes: 65_536 }
    const resolve = resolveFor({ tenant, keyId: 'webhooks' })
    return (await safeFetch(url, { method: 'POST', body, headers, allowPrivate, resolve, ...limits })).status
  }

function settingsOf(options: ServeOptions, live: Live): ServerParts['settings'] {
  const server = live.config.server ?? {}
  return {
    hosts: server.hosts ?? [],
    origins: server.origins ?? [],
    allowInteractive: () => live.config.policy?.allow_interactive ?? false,
    tls: Boolean(options.tlsCert ?? server.tls_cert),
    version: options.version ?? '0.1.0',
  }
}

const ratesOf = (server: NonNullable<Config['server']>) => ({
  signIns: new RateLimit(server.wrong_keys_per_second ?? SIGN_INS_PER_SECOND),
  requests: new RateLimit(server.requests_per_second ?? REQUESTS_PER_SECOND),
  wrongKeys: new RateLimit(server.wrong_keys_per_second ?? WRONG_KEYS_PER_SECOND),
})

/** Limits guesses of sign-in secrets, which are unguessable anyway. */
const SIGN_INS_PER_SECOND = 5
const REQUESTS_PER_SECOND = 2000
const WRONG_KEYS_PER_SECOND = 20

function poolSize({
  size,
  backend,
  template,
  image,
  network,
  cpus,
  memory_mb,
}: NonNullable<NonNullable<Config['server']>['pool']>[number]): PoolSize {
  const limits = { ...(cpus && { cpus }), ...(memory_mb && { memoryMb: memory_mb }) }
  const spec: Spec = parseSpec({
    ...(backend && { backend }),
    // As in a request that names a template.
    ...(template && { template, root: 'preferred' }),
    ...(image && { image }),
    ...(network && { network: { mode: network } }),
    ...(Object.keys(limits).length > 0 && { limits }),
  })
  return { spec, size }
}
