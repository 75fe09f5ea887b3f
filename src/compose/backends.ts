import { createHash } from 'node:crypto'
import { join } from 'node:path'
import type { Backend, Probe } from '../backends/backend.ts'
import { bubblewrap } from '../backends/bubblewrap/backend.ts'
import { lazy } from '../backends/lazy.ts'
import { mock } from '../backends/mock/backend.ts'
import { native } from '../backends/native/backend.ts'
import { SandboxRegistry } from '../backends/registry.ts'
import { seatbelt } from '../backends/seatbelt/backend.ts'
import { probeCache } from '../host/probe-cache.ts'
import { ownEpoch } from '../host/process/orphans.ts'
import { ProofStore } from '../host/proof-store.ts'
import { caller, hostFingerprint, systemProgram } from '../host/system.ts'
import type { KubernetesConfig, MICROVM_DRIVERS } from '../model/config.ts'
import { SandboxError } from '../model/errors.ts'
import type { Plan } from '../model/plan.ts'
import type { BACKENDS, Isolation, Spec } from '../model/spec.ts'
import { VERSION } from '../model/version.ts'
import { type Observed, pathsOf, planFor, type SandboxPolicy } from '../policy/plan.ts'
import { agentPath, packageFile } from './files.ts'

/** Constructs the backends. */

/** What the backends need to know about this process and its configuration. */
export type RegistryOptions = {
  readonly stays?: boolean
  readonly onProgress?: (text: string) => void
}

/** What the backends are made of. */
export type RegistryParts = {
  readonly stateDir: string
  readonly env: Readonly<Record<string, string>>
  readonly policy: () => SandboxPolicy
  readonly observe: (path: string) => Observed
  /** How many containers are kept ready for each kind of requested sandbox. */
  readonly ready: () => number
  /** Whether emulated virtual machines may be selected without being named. */
  readonly emulates: () => boolean
  readonly runtime: () => 'runc' | 'runsc' | undefined
  readonly microvmDriver: () => (typeof MICROVM_DRIVERS)[number]
  readonly kubernetes: () => KubernetesConfig | undefined
  /** Whether this server belongs to a cluster on one database. */
  readonly isMember: () => boolean
  readonly closing: (() => Promise<void>)[]
}

/** Default order: backends with the host's own tools come first, because `run` is meant for them. */
const PRIORITY = {
  bubblewrap: 50,
  seatbelt: 40,
  docker: 30,
  gvisor: 20,
  microvm: 15,
  kubernetes: 12,
  e2b: 10,
  openshell: 5,
  native: 0,
  mock: 0,
} as const satisfies Record<(typeof BACKENDS)[number], number>

/** Every backend. Those that are expensive to load are loaded on first use. */
export function registryFor(options: RegistryOptions, parts: RegistryParts): SandboxRegistry {
  const { stateDir, env, policy, observe } = parts
  const probePlan = (isolation?: Isolation): Plan =>
    probePlanFor({ policy: policy(), observe, stateDir }, isolation)
  const proofs = new ProofStore(stateDir, VERSION)
  const registry = new SandboxRegistry(
    probeCache<Probe>(stateDir),
    parts.emulates,
    (backend) => proofs.load(backend)?.broken ?? [],
  )
  const local: readonly Backend[] = [
    bubblewrap({ agent: agentPath(), probePlan }),
    lazyDocker(options, parts, probePlan),
    lazyGvisor(options, parts, probePlan),
    lazyMicrovm(options, parts, probePlan),
    lazyKubernetes(options, parts, probePlan),
    // On other platforms it is never available.
    ...(process.platform === 'darwin' ? [seatbelt({ platform: 'darwin', probePlan })] : []),
    lazyE2b(env),
    lazyOpenShell(env, registry),
    native(env),
    mock(),
  ]
  for (const backend of local) registry.register(backend, PRIORITY[backend.name as keyof typeof PRIORITY])
  return registry
}

/** Sockets of container engines: the configured one, or the default paths. SECURITY: only local sockets. */
function engineSockets(env: Readonly<Record<string, string>>): readonly string[] {
  const named = env.RINGFENCE_DOCKER_SOCKET ?? /^unix:\/\/(\/.+)$/.exec(env.DOCKER_HOST ?? '')?.[1]
  if (named !== undefined) return [named]
  const own = env.XDG_RUNTIME_DIR ? [join(env.XDG_RUNTIME_DIR, 'podman', 'podman.sock')] : []
  return ['/run/docker.sock', '/var/run/docker.sock', '/run/podman/podman.sock', ...own]
}

/** A single command uses a backend with the host's own tools, if there is one, unless it requests more isolation. */
const onRequest = ({ stays }: RegistryOptions): boolean =>
  !stays && (process.platform === 'linux' || process.platform === 'darwin')

/** Labels that identify the owner of a container: this state directory and this process. */
function labelsOf(stateDir: string): { readonly owner: string; readonly epoch: string } {
  const owner = createHash('sha256').update(`${stateDir}|${caller().uid}`).digest('hex').slice(0, 16)
  return { owner, epoch: ownEpoch() }
}

/** Properties of image-based backends that are known before they are loaded. */
const imageFace = (options: RegistryOptions) =>
  ({ byNameOnly: false, onRequest: onRequest(options), runsImages: true }) as const

/** The parts that image-based backends share. */
async function imageParts(options: RegistryOptions, { stateDir, ready }: RegistryParts) {
  const { ImageStore } = await import('../backends/images/store.ts')
  return {
    agent: agentPath(),
    images: new ImageStore(stateDir),
    stateDir,
    ready: options.stays ? ready() : 0,
    onProgress: options.onProgress,
  }
}

function lazyDocker(
  options: RegistryOptions,
  parts: RegistryParts,
  probePlan: (isolation?: Isolation) => Plan,
): Backend {
  const sockets = engineSockets(parts.env)
  return lazy(
    {
      ...({ name: 'docker', level: 'container', emulated: false, mountsVolumes: true } as const),
      ...imageFace(options),
      get writableRoots() {
        return parts.runtime() !== 'runsc'
      },
    },
    () => hostFingerprint([...sockets, agentPath()]),
    async () => {
      const { docker } = await import('../backends/docker/backend.ts')
      const shared = await imageParts(options, parts)
      const runtime = parts.runtime()
      const backend = docker({ ...shared, probePlan, sockets, runtime, ...labelsOf(parts.stateDir) })
      parts.closing.push(() => backend.close())
      return backend
    },
  )
}

function lazyGvisor(
  options: RegistryOptions,
  parts: RegistryParts,
  probePlan: (isolation?: Isolation) => Plan,
): Backend {
  return lazy(
    { name: 'gvisor', level: 'gvisor', emulated: false, mountsVolumes: true, ...imageFace(options) },
    () => hostFingerprint([systemProgram('runsc') ?? 'runsc', agentPath()]),
    async () => {
      const { gvisor } = await import('../backends/gvisor/backend.ts')
      const backend = gvisor({ ...(await imageParts(options, parts)), probePlan })
      parts.closing.push(() => backend.close())
      return backend
    },
  )
}

/** Guests count as hardware-virtualized once a probe has shown it since the host booted. */
function lazyMicrovm(
  options: RegistryOptions,
  parts: RegistryParts,
  probePlan: (isolation?: Isolation) => Plan,
): Backend {
  const { stateDir } = parts
  const fingerprint = (): string => {
    const files = [systemProgram('qemu-system-x86_64') ?? 'qemu', agentPath(), kernelRecord(stateDir)]
    return `${parts.microvmDriver()} ${hostFingerprint(files)}`
  }
  const memory = probeCache<boolean>(stateDir)
  const emulated = (): boolean => memory.load('kvm', fingerprint()) !== true
  const face = {
    name: 'microvm',
    level: 'microvm',
    writableRoots: true,
    ...imageFace(options),
    get emulated() {
      return emulated()
    },
  } as const
  return lazy(face, fingerprint, async () => {
    const [{ microvm }, { Qemu }, { UntestedDriver }, { refusedBy }] = await Promise.all([
      import('../backends/microvm/backend.ts'),
      import('../backends/microvm/drivers/qemu.ts'),
      import('../backends/microvm/drivers/untested.ts'),
      import('../policy/paths/protect.ts'),
    ])
    const onKvm = (): void => memory.save('kvm', fingerprint(), true)
    const name = parts.microvmDriver()
    const driver =
      name === 'qemu'
        ? new Qemu({ agent: agentPath(), preload: preloadPath(), accelerator: 'auto', onKvm })
        : new UntestedDriver(name)
    const shared = await imageParts(options, parts)
    const backend = microvm({ ...shared, probePlan, driver, emulated, refuses: refusedBy })
    parts.closing.push(() => backend.close())
    return backend
  })
}

const CLUSTER_PROBE_MS = 600_000

/** Off unless the configuration has `[kubernetes]`. A cluster changes without us, so a probe is kept for minutes only. */
function lazyKubernetes(
  options: RegistryOptions,
  parts: RegistryParts,
  probePlan: (isolation?: Isolation) => Plan,
): Backend {
  const face = {
    ...({ name: 'kubernetes', emulated: false } as const),
    ...imageFace(options),
    get level() {
      return parts.kubernetes()?.runtime ?? 'container'
    },
  }
  return lazy(
    face,
    () => `${Math.floor(Date.now() / CLUSTER_PROBE_MS)} ${JSON.stringify(parts.kubernetes() ?? '')}`,
    async () => {
      const [{ kubernetes }, { settingsOf }, { refusedBy }] = await Promise.all([
        import('../backends/kubernetes/backend.ts'),
        import('../backends/kubernetes/settings.ts'),
        import('../policy/paths/protect.ts'),
      ])
      const config = parts.kubernetes()
      const settings = config && settingsOf(config)
      const backend = kubernetes({
        settings,
        library: () => import('@kubernetes/client-node'),
        probePlan,
        owner: labelsOf(parts.stateDir).owner,
        pod: ownPod(parts.env, settings?.namespace),
        refuses: refusedBy,
        ready: options.stays ? (config?.ready ?? 0) : 0,
        outlives: options.stays === true && parts.isMember(),
      })
      parts.closing.push(() => backend.close())
      return backend
    },
  )
}

/** The Pod that this process runs in. INVARIANT: an owner in another namespace counts as gone, and the cluster would remove what it owns. */
function ownPod(
  {
    RINGFENCE_POD_NAME: name,
    RINGFENCE_POD_UID: uid,
    RINGFENCE_POD_NAMESPACE: namespace,
  }: RegistryParts['env'],
  wanted: string | undefined,
): { readonly name: string; readonly uid: string } | undefined {
  return name && uid && namespace === wanted ? { name, uid } : undefined
}

const kernelRecord = (stateDir: string): string => join(stateDir, 'images', 'microvm', 'kernel.json')
const preloadPath = (): string => packageFile('dist', 'guest', 'ringfence-readonly.so')

/** How long E2B keeps an idle sandbox. */
const REMOTE_IDLE_MS = 300_000

/** SECURITY: the key stays on this host; it is never passed to a command or written to a record. */
function lazyE2b(env: Readonly<Record<string, string>>): Backend {
  const { E2B_API_KEY: apiKey, E2B_DOMAIN: domain = 'e2b.app', E2B_SANDBOX_URL: sandboxUrl } = env
  const apiUrl = (env.E2B_API_URL ?? `https://api.${domain}`).replace(/\/+$/, '')
  const settings = apiKey ? { apiKey, apiUrl, sandboxUrl, domain, template: 'base' } : undefined
  const face = { name: 'e2b', level: 'microvm', byNameOnly: true, emulated: false, runsImages: true } as const
  return lazy(
    face,
    // A remote machine's availability is never cached.
    () => '',
    async () => {
      const { e2b } = await import('../backends/e2b/backend.ts')
      // @ts-expect-error: E2B's package is an optional dependency of the caller
      return e2b({ settings, sdk: () => import('e2b'), idleMs: REMOTE_IDLE_MS })
    },
  )
}

/** `RINGFENCE_OPENSHELL_MODE=mirror` runs on this host, `remote` on the gateway. */
function lazyOpenShell(env: Readonly<Record<string, string>>, registry: SandboxRegistry): Backend {
  const named = (name: string): string | undefined => env[`RINGFENCE_OPENSHELL_${name}`]
  const settings = {
    mode: named('MODE') ?? (named('URL') === undefined ? undefined : 'remote'),
    apiUrl: named('URL'),
    apiKey: named('TOKEN'),
    caFile: named('CA'),
    certFile: named('CERT'),
    keyFile: named('KEY'),
    image: named('IMAGE'),
  }
  const face = {
    name: 'openshell',
    level: 'container',
    byNameOnly: true,
    emulated: false,
    runsImages: true,
  } as const
  return lazy(
    face,
    () => '',
    async () => (await import('../backends/openshell/backend.ts')).openshell(settings, registry),
  )
}

/** The plan that probes use: no grants, all isolation layers enabled. */
function probePlanFor(
  {
    policy,
    observe,
    stateDir,
  }: {
    readonly policy: SandboxPolicy
    readonly observe: (path: string) => Observed
    readonly stateDir: string
  },
  isolation?: Isolation,
): Plan {
  const spec: Spec = { limits: { wallMs: 10_000 }, ...(isolation ? { isolation } : {}) }
  const paths = new Map(pathsOf(policy, spec).map((path) => [path, observe(path)]))
  const facts = {
    uid: caller().uid,
    home: '/',
    stateDir: observe(stateDir),
    hostMemoryMb: 1024,
    cwd: '/',
    paths,
  }
  const plan = planFor(policy, spec, facts)
  if (plan instanceof SandboxError) throw plan
  return plan
}
