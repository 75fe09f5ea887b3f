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
import { type ClientLibrary, ClusterApi, RIGHTS, type Right } from './cluster-api.ts'
import { POLICY_NAME, policyOf } from './launch.ts'
import { isNetworkEnforced } from './network-probe.ts'
import { type PodParts, SandboxPod } from './pod.ts'
import { PodPool } from './pod-pool.ts'
import { PodWatch } from './pod-watch.ts'
import { PodSandbox, refuseUnsent, sentTo } from './sandbox.ts'
import { type KubernetesSettings, resourcesOf } from './settings.ts'

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
const PROVEN_MS = 600_000
const MB = 1024 * 1024

type Cluster = PodParts & { readonly pool: PodPool; readonly enforced: () => Promise<boolean> }

/** Pods of a Kubernetes cluster, with our agent as their first process. */
export function kubernetes(parts: KubernetesParts): Backend & { readonly close: () => Promise<void> } {
  return new Kubernetes(parts)
}

class Kubernetes implements Backend {
  readonly name = 'kubernetes'
  readonly level: Level = 'container'
  readonly byNameOnly = false
  readonly emulated = false
  readonly runsImages = true
  readonly #parts: KubernetesParts
  readonly #filter = encode(assemble(process.arch as Arch))
  #cluster: Promise<Cluster> | undefined
  #opened: { readonly at: number; readonly tookMs: number } | undefined

  constructor(parts: KubernetesParts) {
    this.#parts = parts
  }

  async probe(): Promise<Probe> {
    const { settings } = this.#parts
    if (!settings) return { available: false, ...OFF }
    try {
      const cluster = await this.#connected(settings)
      const missing = await cluster.api.missing(RIGHTS)
      if (missing.length > 0) return { available: false, ...rightsText(missing, settings.namespace) }
      const [enforced, startMs] = await Promise.all([cluster.enforced(), this.#startTime()])
      const guarantees = enforced ? [...CLAIMS, ...NETWORK_CLAIMS] : CLAIMS
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
    const cluster = await this.#connected(settings)
    const began = monotonicMs()
    const sandbox =
      (await this.#fromPool(plan, image, cluster, options)) ??
      (await this.#occupy(
        plan,
        await SandboxPod.create(cluster, plan, { image, patienceSecs: PATIENCE_SECS }, options.signal),
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
    const pod = await pool.take(plan, image)
    return pod && (await this.#occupy(plan, pod, settings, options).catch(() => undefined))
  }

  async reap(): Promise<void> {
    const { settings } = this.#parts
    if (!settings) return
    const { api } = await this.#connected(settings)
    await removeEnded(api, this.#parts.owner)
  }

  async close(): Promise<void> {
    const cluster = await this.#cluster?.catch(() => undefined)
    await cluster?.pool.close().catch(() => {})
    cluster?.watch.close()
  }

  /** Connects a Pod, configures its agent and sends what the sandbox is given of this host. */
  async #occupy(
    plan: Plan,
    pod: SandboxPod,
    settings: KubernetesSettings,
    { onTunnel }: OpenOptions,
  ): Promise<BackendSandbox> {
    const sent = sentTo(plan)
    try {
      await pod.connect(sent.map(({ archive }) => archive))
    } catch (error) {
      await pod.destroy().catch(() => {})
      throw error
    }
    const fields = containerFields(withResources(plan, settings), {
      supervises: true,
      counts: true,
      copies: true,
    })
    const agentConfig = { fields, expected: [], filter: this.#filter }
    const transport = new ContainerTransport(plan, pod, agentConfig, {
      layersOf: podLayers(settings),
      onTunnel,
    })
    await transport.ready()
    const { diskMb } = resourcesOf(plan, settings)
    return PodSandbox.open(plan, transport, sent, { refuses: this.#parts.refuses, most: diskMb * MB })
  }

  #connected(settings: KubernetesSettings): Promise<Cluster> {
    this.#cluster ??= this.#connect(settings)
    this.#cluster.catch(() => {
      this.#cluster = undefined
    })
    return this.#cluster
  }

  async #connect(settings: KubernetesSettings): Promise<Cluster> {
    const { library, owner, pod } = this.#parts
    const api = new ClusterApi(await library(), settings)
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
    void removeEnded(api, owner).catch(() => {})
    const shared: PodParts = { api, authority, watch, settings, labels, owner: pod }
    return { ...shared, pool: new PodPool(shared, this.#parts.ready ?? 0), enforced }
  }
}

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

/** Pods that have ended need nobody: their sandbox is over, whoever created them. */
async function removeEnded(api: ClusterApi, owner: string): Promise<void> {
  const { pods } = await api.listPods(`ringfence.dev/owner=${owner}`)
  for (const { metadata, status } of pods)
    if (metadata?.name && (status?.phase === 'Failed' || status?.phase === 'Succeeded'))
      await api.deletePod(metadata.name, 0)
}

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
