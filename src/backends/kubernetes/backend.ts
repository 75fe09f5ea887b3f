import { randomBytes } from 'node:crypto'
import { monotonicMs } from '../../host/clock.ts'
import type { HostNote } from '../../host/diagnose.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Guarantee, Level } from '../../model/guarantee.ts'
import { isPlan, type Plan } from '../../model/plan.ts'
import type { Backend, BackendSandbox, OpenOptions, Probe } from '../backend.ts'
import { type Arch, assemble, encode } from '../bubblewrap/seccomp.ts'
import { refuseUnfit } from '../container-files.ts'
import { ContainerTransport } from '../container-handle.ts'
import { layersOf } from '../docker/layers.ts'
import { containerFields } from '../guest-config.ts'
import type { ProtectedNameOf } from '../microvm/files/copy-out.ts'
import { ChannelAuthority } from './authority.ts'
import { type ClientLibrary, ClusterApi, RIGHTS, type Right, TENANT_RIGHTS } from './cluster-api.ts'
import { POLICY_NAME, policyOf } from './launch.ts'
import { isNetworkEnforced } from './network-probe.ts'
import { type PodParts, SANDBOX_ID, SandboxPod } from './pod.ts'
import { podLeftBehind, removeEnded } from './pod-leftovers.ts'
import { PodPool } from './pod-pool.ts'
import { PodWatch } from './pod-watch.ts'
import { otherRuntime } from './runtime-probe.ts'
import { PodSandbox, refuseUnsent, sentTo } from './sandbox.ts'
import { type KubernetesSettings, resourcesOf } from './settings.ts'
import { ensureNamespace, settingsFor } from './tenant-namespace.ts'

/** What the Kubernetes backend is made of. */
export type KubernetesParts = {
  /** Absent: the configuration has no `[kubernetes]`. */
  readonly settings: KubernetesSettings | undefined
  readonly library: () => Promise<ClientLibrary>
  readonly probePlan: () => Plan
  /** Identifies this installation, to find its leftovers. */
  readonly owner: string
  /** The Pod that this server runs in. */
  readonly pod?: { readonly name: string; readonly uid: string } | undefined
  /** How many Pods are kept ready for each kind of sandbox. */
  readonly ready?: number
  /** Whether other servers take sandboxes over when this one is gone. */
  readonly outlives?: boolean
  /** Which names are not copied back. */
  readonly refuses: ProtectedNameOf
}

/** What was proven on a cluster whatever its network does. */
const CLAIMS: readonly Guarantee[] = [
  'fs.read',
  'fs.write',
  'fs.protect',
  'env.clean',
  'secrets.outside',
  'proc.hidden',
  'ipc.private',
  'kernel.filtered',
  'limit.wall',
  'limit.idle',
  'limit.memory',
  'limit.cpu',
  'limit.pids',
  'limit.disk',
  'limit.output',
  'cleanup',
]
const NETWORK_CLAIMS: readonly Guarantee[] = ['net.offline', 'net.loopback', 'net.fetch']

const OFF = {
  reason: 'not configured',
  fix: 'add [kubernetes] with `agent_image` to the configuration (docs/kubernetes.md)',
}
/** How long the channel of a new Pod waits for us. */
const PATIENCE_SECS = 120
/** How long a Pod whose server is gone waits for another one. */
const TAKEOVER_SECS = 120
const SWEEP_MS = 60_000
/** A Pod's /tmp is on the node's disk, where the cluster notices only after seconds that it is full: the agent counts it too. */
const TEMPORARY_FIELDS = ['supervise', '/tmp', 'private', '/tmp'] as const
const PROVEN_MS = 600_000
const MB = 1024 * 1024

type Cluster = PodParts & { readonly pool: PodPool; readonly enforced: () => Promise<boolean> }

/** Pods of a Kubernetes cluster, with our agent as their first process. */
export function kubernetes(parts: KubernetesParts): Backend & { readonly close: () => Promise<void> } {
  return new Kubernetes(parts)
}

class Kubernetes implements Backend {
  readonly name = 'kubernetes'
  readonly byNameOnly = false
  readonly emulated = false
  readonly runsImages = true
  readonly #parts: KubernetesParts
  readonly #filter = encode(assemble(process.arch as Arch))
  /** By namespace. */
  readonly #clusters = new Map<string, Promise<Cluster>>()
  readonly #sweeping: NodeJS.Timeout[] = []
  #opened: { readonly at: number; readonly tookMs: number } | undefined

  constructor(parts: KubernetesParts) {
    this.#parts = parts
  }

  get level(): Level {
    return this.#parts.settings?.runtime ?? 'container'
  }

  async probe(): Promise<Probe> {
    const { settings } = this.#parts
    if (!settings) return { available: false, ...OFF }
    try {
      const cluster = await this.#connected(settings)
      const missing = await cluster.api.missing(rightsOf(settings))
      if (missing.length > 0) return { available: false, ...rightsText(missing, settings.namespace) }
      const other = await otherRuntime(cluster.api, settings, cluster.labels)
      if (other) return { available: false, ...other }
      const [enforced, startMs] = await Promise.all([cluster.enforced(), this.#startTime()])
      const claims = settings.runtime === 'gvisor' ? CLAIMS.filter(isKeptByGvisor) : CLAIMS
      const guarantees = enforced ? [...claims, ...NETWORK_CLAIMS] : claims
      return { available: true, guarantees, waived: settings.waive, startMs }
    } catch (error) {
      const hint = error instanceof SandboxError ? error.hint : undefined
      return {
        available: false,
        reason: (error as Error).message,
        fix: hint ?? 'check the cluster: kubectl get nodes',
      }
    }
  }

  /** Starts a Pod and uses it. A sandbox that was opened a short time ago has shown the same. */
  async #startTime(): Promise<number> {
    if (this.#opened && monotonicMs() - this.#opened.at < PROVEN_MS) return this.#opened.tookMs
    const began = monotonicMs()
    const sandbox = await this.open(this.#parts.probePlan(), {})
    const tookMs = monotonicMs() - began
    try {
      await sandbox.files.stat('/tmp')
    } finally {
      await sandbox.close()
    }
    return tookMs
  }

  /** What weakens sandboxes on this cluster. */
  async notes(): Promise<readonly HostNote[]> {
    const { settings } = this.#parts
    if (!settings) return []
    const cluster = await this.#connected(settings)
    return (await cluster.enforced()) ? [] : [UNENFORCED]
  }

  async open(plan: Plan, options: OpenOptions = {}): Promise<BackendSandbox> {
    const { settings } = this.#parts
    if (!isPlan(plan)) throw new SandboxError('internal', 'a backend accepts only plans that policy made')
    if (!settings) throw new SandboxError('backend-unavailable', OFF.reason, { hint: OFF.fix })
    if (plan.network.mode === 'fetch' && !options.onTunnel)
      throw new SandboxError('internal', 'a sandbox with network mode fetch needs a proxy')
    refuseUnfit(plan, this.name)
    refuseUnsent(plan)
    const image = imageOf(plan, settings)
    const cluster = await this.#connected(settings, options.owner)
    const began = monotonicMs()
    if (options.takesOver)
      return this.#occupy(plan, await podLeftBehind(cluster, plan, options), settings, options)
    const labels = labelsOf(options)
    const made = { image, labels, patienceSecs: PATIENCE_SECS }
    const sandbox =
      (await this.#fromPool(plan, image, cluster, options)) ??
      (await this.#occupy(
        plan,
        await SandboxPod.create(cluster, plan, made, options.signal),
        settings,
        options,
      ))
    this.#opened = { at: monotonicMs(), tookMs: monotonicMs() - began }
    return sandbox
  }

  /** A Pod of the pool that turns out to be gone is no error: another one is created. */
  async #fromPool(
    plan: Plan,
    image: string,
    { pool, settings }: Cluster,
    options: OpenOptions,
  ): Promise<BackendSandbox | undefined> {
    const pod = await pool.take(plan, image, labelsOf(options))
    return pod && (await this.#occupy(plan, pod, settings, options).catch(() => undefined))
  }

  async reap(): Promise<void> {
    const { settings } = this.#parts
    if (!settings) return
    await this.#connected(settings)
    for (const cluster of this.#clusters.values()) await removeEnded((await cluster).api, this.#parts.owner)
  }

  async close(): Promise<void> {
    for (const timer of this.#sweeping) clearInterval(timer)
    for (const connecting of this.#clusters.values()) {
      const cluster = await connecting.catch(() => undefined)
      await cluster?.pool.close().catch(() => {})
      cluster?.watch.close()
    }
  }

  /** Connects a Pod, configures its agent and sends what the sandbox is given of this host. */
  async #occupy(
    plan: Plan,
    pod: SandboxPod,
    settings: KubernetesSettings,
    { onTunnel, takesOver, generation = 1 }: OpenOptions,
  ): Promise<BackendSandbox> {
    // A Pod that another server left has its files already.
    const sent = takesOver ? [] : sentTo(plan)
    try {
      await pod.connect(
        sent.map(({ archive }) => archive),
        generation,
      )
    } catch (error) {
      // A Pod that has a later connection is another server's.
      if (error instanceof SandboxError && error.code === 'conflict') pod.leave()
      else await pod.destroy().catch(() => {})
      throw error
    }
    const supervises = settings.runtime !== 'gvisor'
    const fields = containerFields(withResources(plan, settings), {
      supervises,
      counts: true,
      countsSockets: supervises,
      copies: true,
    })
    const more = supervises ? TEMPORARY_FIELDS : []
    const agentConfig = { fields: [...fields, ...more], expected: [], filter: this.#filter }
    const transport = new ContainerTransport(plan, pod, agentConfig, {
      layersOf: podLayers(settings),
      onTunnel,
    })
    await transport.ready()
    const limits = resourcesOf(plan, settings)
    return PodSandbox.open(plan, { transport, pod, limits }, sent, {
      refuses: this.#parts.refuses,
      most: limits.diskMb * MB,
    })
  }

  #connected(all: KubernetesSettings, tenant?: string): Promise<Cluster> {
    const settings = settingsFor(all, tenant)
    const { namespace } = settings
    const known = this.#clusters.get(namespace)
    if (known) return known
    const isOwn = namespace !== all.namespace
    const connecting = this.#connect(settings, isOwn ? tenant : undefined)
    this.#clusters.set(namespace, connecting)
    connecting.catch(() => this.#clusters.delete(namespace))
    return connecting
  }

  async #connect(settings: KubernetesSettings, tenant: string | undefined): Promise<Cluster> {
    const { library, owner, pod } = this.#parts
    const api = new ClusterApi(await library(), settings)
    if (tenant !== undefined) await ensureNamespace(api, settings, tenant)
    const authority = await ChannelAuthority.of(api)
    if (!(await api.readPolicy(POLICY_NAME))) await createPolicy(api, settings)
    const instance = randomBytes(8).toString('hex')
    const labels = { 'ringfence.dev/owner': owner, 'ringfence.dev/instance': instance }
    const watch = new PodWatch(api, `ringfence.dev/instance=${instance}`)
    let measured: Promise<boolean> | undefined
    const enforced = (): Promise<boolean> => {
      measured ??= isNetworkEnforced(api, settings, labels)
      measured.catch(() => {
        measured = undefined
      })
      return measured
    }
    const sweep = (): void => void removeEnded(api, owner).catch(() => {})
    sweep()
    // Nobody else removes what a server that does not come back has left.
    if (this.#parts.outlives) this.#sweeping.push(setInterval(sweep, SWEEP_MS).unref())
    const takeoverSecs = this.#parts.outlives ? TAKEOVER_SECS : 0
    // What outlives this server must not be removed with its Pod, and an owner is in the same namespace.
    const owning = takeoverSecs > 0 || tenant !== undefined ? undefined : pod
    const shared: PodParts = { api, authority, watch, settings, labels, owner: owning, takeoverSecs }
    return {
      ...shared,
      pool: new PodPool(shared, tenant === undefined ? (this.#parts.ready ?? 0) : 0),
      enforced,
    }
  }
}

const rightsOf = ({ tenantNamespaces }: KubernetesSettings): readonly Right[] =>
  tenantNamespaces === undefined ? RIGHTS : [...RIGHTS, ...TENANT_RIGHTS[tenantNamespaces]]

/** PLATFORM: gVisor has no seccomp notifications, so the agent cannot watch paths and bytes there. */
const isKeptByGvisor = (name: Guarantee): boolean => name !== 'fs.protect' && name !== 'limit.disk'

const UNENFORCED: HostNote = {
  id: 'kubernetes-network-policy',
  weight: 'weakens',
  text: 'this cluster does not enforce NetworkPolicy: the backend kubernetes guarantees no `net.*`, and sandboxes that need it are refused',
  fix: 'install a network plugin that enforces it (Calico, Cilium), or name what sandboxes may do without: `waive = ["net.offline", "net.fetch"]` in [kubernetes]',
}

/** Another server may have created it meanwhile. */
async function createPolicy(api: ClusterApi, settings: KubernetesSettings): Promise<void> {
  try {
    await api.createPolicy(policyOf(settings))
  } catch (error) {
    if (!(error instanceof SandboxError && error.code === 'conflict')) throw error
  }
}

const labelsOf = ({ id }: OpenOptions): Readonly<Record<string, string>> =>
  id === undefined ? {} : { [SANDBOX_ID]: id }

function rightsText(
  missing: readonly Right[],
  namespace: string,
): { readonly reason: string; readonly fix: string } {
  const names = missing.map(({ verb, resource }) => `${verb} ${resource}`).join(', ')
  return {
    reason: `the cluster does not permit in namespace ${namespace}: ${names}`,
    fix: 'kubectl apply -k deploy/kubernetes/sandboxes',
  }
}

/** What a sandbox on a cluster does without, by the operator's word. */
const podLayers =
  ({ waive }: KubernetesSettings): ((status: ReadonlyMap<string, string>) => readonly string[]) =>
  (status) => ['pod', ...layersOf(status), ...waive.map((name) => `waived:${name}`)]

/** The limits that the Pod really has: those of this host say nothing about the cluster's nodes. */
function withResources(plan: Plan, settings: KubernetesSettings): Plan {
  const { memoryMb, diskMb } = resourcesOf(plan, settings)
  return { ...plan, limits: { ...plan.limits, memoryMb, diskMb } }
}

const REFERENCE = /^[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,254}$/

/** SECURITY: the images that the cluster can pull belong to the operator, so a tenant needs a grant to name one. */
function imageOf({ image, engineImages }: Plan, settings: KubernetesSettings): string {
  const name = image ?? settings.image
  if (name === undefined)
    throw new SandboxError('invalid-input', 'a Pod needs an image', {
      hint: 'name one with --image, or set `image` in [kubernetes]',
    })
  if (image !== undefined && image !== settings.image && !engineImages)
    throw new SandboxError('forbidden', `this tenant may not run the image \`${image}\``, {
      hint: `the operator can permit it: \`images = ["${image}"]\` in [[tenant]]`,
    })
  if (REFERENCE.test(name)) return name
  throw new SandboxError('invalid-input', `\`${name}\` is not the name of an image`)
}
