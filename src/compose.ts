import { createHash, randomBytes } from 'node:crypto'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { pathsOf as trailPaths } from './audit/files.ts'
import { openTrail } from './audit/trail.ts'
import type { Backend, Probe } from './backends/backend.ts'
import { bubblewrap } from './backends/bubblewrap/backend.ts'
import { lazy } from './backends/lazy.ts'
import { mock } from './backends/mock/backend.ts'
import { native } from './backends/native/backend.ts'
import { SandboxRegistry } from './backends/registry.ts'
import { seatbelt } from './backends/seatbelt/backend.ts'
import { loadConfig } from './host/config-file.ts'
import { hostPath } from './host/facts.ts'
import { ownEpoch } from './host/orphans.ts'
import { probeMemory } from './host/probe-memory.ts'
import { Review, reviewId } from './host/review.ts'
import { caller, hostFingerprint, hostMemoryMb, readText, systemProgram } from './host/system.ts'
import type { Config } from './model/config.ts'
import type { Decision } from './model/decision.ts'
import { SandboxError } from './model/errors.ts'
import type { Event, EventSink, Json } from './model/event.ts'
import type { Plan } from './model/plan.ts'
import type { Spec } from './model/spec.ts'
import { type Observed, pathsOf, planFor, type SandboxPolicy, sandboxPolicyOf } from './policy/plan.ts'
import type { SkillParts } from './server/parts.ts'
import type { SkillRunner } from './skills/runner.ts'
import type { PreparedEgress } from './supervisor/egress.ts'
import { type AskedCommand, type CommandPlace, Gate } from './supervisor/gate.ts'

/** The composition root: the only file that reads the environment and knows every room. */

export type ComposeOptions = {
  /** The whole configuration. */
  readonly config?: string | undefined
  /** A file of which only the policy part counts. */
  readonly policy?: string | undefined
  readonly env?: NodeJS.ProcessEnv
  readonly cwd?: string
  /** This process stays: what `[backends] ready` asks for is worth its cost. */
  readonly stays?: boolean
  /** Hears what takes long, such as the making of an image. */
  readonly onProgress?: (text: string) => void
  /** Where events go, when it is not the state directory's own trail. */
  readonly trail?: TrailSink
}

export type TrailSink = EventSink & { readonly close: () => Promise<void> }

export type Ringfence = {
  readonly config: Config
  readonly stateDir: string
  readonly home: string
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  readonly registry: SandboxRegistry
  readonly gate: Gate
  readonly trail: EventSink
  readonly judge: (command: AskedCommand, place: CommandPlace) => Promise<Decision>
  /** Names the policy in force. */
  readonly policyHash: () => string
  /** The network modes that it has. */
  readonly networkModes: () => readonly string[]
  /** The configuration as it is now. */
  readonly current: () => Config
  /** The file that an operator edits to change the policy; it may not exist yet. */
  readonly policyFile: string
  /** Judges a command and keeps the tree behind the decision. */
  readonly inspect: (command: AskedCommand, place: CommandPlace) => Promise<unknown>
  /** Reads the configuration anew. When anything in it is wrong, everything stays as it was. */
  readonly reload: () => Promise<Config>
  /** Seals the trail. Call it once, when nothing runs any more. */
  readonly close: () => Promise<void>
}

/** The environment of this process; read nowhere else. */
export const environment = (): NodeJS.ProcessEnv => process.env

/** What a configuration decides; replaced as a whole. */
type InForce = {
  readonly config: Config
  readonly policy: SandboxPolicy
  readonly judge: Ringfence['judge']
  readonly hash: string
}

export async function compose(options: ComposeOptions = {}): Promise<Ringfence> {
  const env = definedOnly(options.env ?? environment())
  const stateDir = stateDirectory(env)
  const home = env.HOME ?? homedir()
  const cwd = options.cwd ?? process.cwd()
  let now = inForce(await configFor(options, env), home)
  const observe = (path: string): Observed =>
    hostPath(path, (name) => now.policy.blocked.includes(name.toLowerCase()))
  const closing: (() => Promise<void>)[] = []
  const registry = registryFor(options, {
    stateDir,
    env,
    policy: () => now.policy,
    observe,
    ready: () => now.config.backends?.ready ?? 0,
    emulates: () => now.config.backends?.emulate ?? false,
    runtime: () => now.config.backends?.docker_runtime,
    closing,
  })
  // It governs servers; a command that runs here means the host's own tools.
  if (options.stays) orderBy(registry, now.config.backends?.order)
  const trail = options.trail ?? lazyTrail(stateDir, () => databaseUrl(now.config, env))
  const judge: Ringfence['judge'] = (command, place) => now.judge(command, place)
  const inspect: Ringfence['inspect'] = (command, place) => inspectWith(now.config, home, command, place)
  const host = { uid: caller().uid, home, stateDir, hostMemoryMb: hostMemoryMb(), cwd }
  const gate = new Gate({
    // Read at each judgement, so that a reload holds for sandboxes that are already open.
    get policy() {
      return now.policy
    },
    registry,
    trail,
    judge,
    observe,
    host,
    newId,
    egress: lazyEgress(() => now.config, trail, env),
    review: (spec, id) => reviewFor(spec, stateDir, id),
  })
  const reload = async (): Promise<Config> => {
    const next = inForce(await configFor(options, env), home)
    // A rule whose examples lie shows only when it is compiled.
    await next.judge({ line: 'true' }, { workspace: '/', cwd: '/' })
    now = next
    return next.config
  }
  return {
    config: now.config,
    stateDir,
    home,
    cwd,
    env,
    registry,
    gate,
    trail,
    judge,
    policyHash: () => now.hash,
    networkModes: () => now.policy.networkModes,
    current: () => now.config,
    policyFile: resolve(cwd, options.policy ?? configFileOf(options, env) ?? userConfig(env)),
    inspect,
    reload,
    close: async () => {
      for (const close of closing.splice(0)) await close().catch(() => {})
      await trail.close()
    },
  }
}

function inForce(config: Config, home: string): InForce {
  const { policy, commands, router, network, backends } = config
  const text = JSON.stringify({ policy, commands, router, network, backends })
  return {
    config,
    policy: sandboxPolicyOf(config, home),
    judge: judgeWith(config, home),
    hash: createHash('sha256').update(text).digest('hex').slice(0, 16),
  }
}

/** The operator's database; empty means the embedded store. */
export const databaseUrl = (config: Config, env: Readonly<Record<string, string>>): string =>
  env.RINGFENCE_DATABASE_URL ?? config.server?.database_url ?? ''

/** Skills on these parts. Loaded when somebody has one, like the parser of commands. */
export async function skillRunner(ringfence: Ringfence, end?: () => Promise<void>): Promise<SkillRunner> {
  const { config, stateDir, cwd, env, trail, gate } = ringfence
  const open = (spec: unknown) => gate.open(spec)
  const parts = { config, stateDir, cwd, env, trail, open, newId, ...(end && { end }) }
  return new (await import('./skills/runner.ts')).SkillRunner(parts)
}

/** Skills for a server: only inspected ones, by name, each run in an empty workspace that ends with it. */
export function skillParts(ringfence: Ringfence): SkillParts {
  let loaded: Promise<SkillRunner> | undefined
  const skills = (): Promise<SkillRunner> => {
    loaded ??= skillRunner(ringfence)
    return loaded
  }
  return {
    usage: async (tenant) => (await skills()).usage(tenant),
    list: async () => (await skills()).details(),
    async run(name, input, tenant) {
      const workspace = mkdtempSync(join(tmpdir(), 'ringfence-work-'))
      const given = { input: (input ?? null) as Json, agentId: tenant, workspace, inspectedOnly: true }
      try {
        const { resultJson } = await import('./skills/contract.ts')
        return resultJson(await (await skills()).run(name, given))
      } finally {
        rmSync(workspace, { recursive: true, force: true })
      }
    },
  }
}

const definedOnly = (env: NodeJS.ProcessEnv): Record<string, string> =>
  Object.fromEntries(Object.entries(env).filter((entry): entry is [string, string] => entry[1] !== undefined))

async function configFor(options: ComposeOptions, env: Readonly<Record<string, string>>): Promise<Config> {
  const found = configFileOf(options, env)
  const config: Config = found === undefined ? {} : await loadConfig(found)
  if (options.policy === undefined) return config
  const { policy, commands, router } = await loadConfig(options.policy)
  return { ...config, ...(policy && { policy }), ...(commands && { commands }), ...(router && { router }) }
}

/** SECURITY: never from the working directory, which an agent or a cloned repository may have written. */
const configFileOf = (options: ComposeOptions, env: Readonly<Record<string, string>>): string | undefined =>
  options.config ??
  env.RINGFENCE_CONFIG ??
  [userConfig(env), '/etc/ringfence/ringfence.toml'].find((file) => existsSync(file))

const userConfig = (env: Readonly<Record<string, string>>): string =>
  join(env.XDG_CONFIG_HOME ?? join(env.HOME ?? homedir(), '.config'), 'ringfence', 'ringfence.toml')

/** `RINGFENCE_HOME`, or the XDG state directory. */
export function stateDirectory(env: Readonly<Record<string, string | undefined>>): string {
  if (env.RINGFENCE_HOME) return resolve(env.RINGFENCE_HOME)
  return join(env.XDG_STATE_HOME ?? join(env.HOME ?? homedir(), '.local', 'state'), 'ringfence')
}

/** Ids are unguessable; their prefix says what they name. */
export const newId = (prefix: string): string => `${prefix}_${randomBytes(10).toString('hex')}`

type RegistryParts = {
  readonly stateDir: string
  readonly env: Readonly<Record<string, string>>
  readonly policy: () => SandboxPolicy
  readonly observe: (path: string) => Observed
  /** So many containers are kept ready for each kind of sandbox that was asked for. */
  readonly ready: () => number
  /** Whether machines that run without the processor's virtualization may be chosen by themselves. */
  readonly emulates: () => boolean
  readonly runtime: () => 'runc' | 'runsc' | undefined
  readonly closing: (() => Promise<void>)[]
}

/** Without an order of the operator's the host's own tools come first: `run` is about them. */
const PRIORITY = {
  bubblewrap: 50,
  seatbelt: 40,
  docker: 30,
  gvisor: 20,
  microvm: 15,
  e2b: 10,
  openshell: 5,
  native: 0,
  mock: 0,
} as const

function registryFor(options: ComposeOptions, parts: RegistryParts): SandboxRegistry {
  const { stateDir, env, policy, observe } = parts
  const probePlan = (): Plan => probePlanFor(policy(), observe, stateDir)
  const registry = new SandboxRegistry(probeMemory<Probe>(stateDir), parts.emulates)
  const local: readonly Backend[] = [
    bubblewrap({ agent: agentPath(), probePlan }),
    lazyDocker(options, parts, probePlan),
    lazyGvisor(options, parts, probePlan),
    lazyMicrovm(options, parts, probePlan),
    // Elsewhere it could only ever say that it is not there.
    ...(process.platform === 'darwin' ? [seatbelt({ platform: 'darwin', probePlan })] : []),
    lazyE2b(env),
    lazyOpenShell(env, registry),
    native(env),
    mock(),
  ]
  for (const backend of local) registry.register(backend, PRIORITY[backend.name as keyof typeof PRIORITY])
  return registry
}

/** `[backends] order`: what stands in it comes first, in that order; the rest keeps its place behind. */
function orderBy(registry: SandboxRegistry, order: readonly string[] | undefined): void {
  for (const [index, name] of (order ?? []).entries()) {
    const backend = registry.get(name)
    if (backend) registry.register(backend, ORDERED - index)
  }
}
const ORDERED = 1000

/** Sockets of container engines: the one that was named, or the usual places. SECURITY: only local ones. */
export function engineSockets(env: Readonly<Record<string, string>>): readonly string[] {
  const named = env.RINGFENCE_DOCKER_SOCKET ?? /^unix:\/\/(\/.+)$/.exec(env.DOCKER_HOST ?? '')?.[1]
  if (named !== undefined) return [named]
  const own = env.XDG_RUNTIME_DIR ? [join(env.XDG_RUNTIME_DIR, 'podman', 'podman.sock')] : []
  return ['/run/docker.sock', '/var/run/docker.sock', '/run/podman/podman.sock', ...own]
}

/** Where there is a wall for the host's own tools, a single command gets that one unless it asks for more. */
const onRequest = ({ stays }: ComposeOptions): boolean =>
  !stays && (process.platform === 'linux' || process.platform === 'darwin')

/** Who made a container: this state directory, and this process. */
function labelsOf(stateDir: string): { readonly owner: string; readonly epoch: string } {
  const owner = createHash('sha256').update(`${stateDir}|${caller().uid}`).digest('hex').slice(0, 16)
  return { owner, epoch: ownEpoch() }
}

function lazyDocker(options: ComposeOptions, parts: RegistryParts, probePlan: () => Plan): Backend {
  const { stateDir, env, closing } = parts
  const sockets = engineSockets(env)
  const face = {
    name: 'docker',
    level: 'container',
    byNameOnly: false,
    emulated: false,
    onRequest: onRequest(options),
    runsImages: true,
  } as const
  return lazy(
    face,
    () => hostFingerprint([...sockets, agentPath()]),
    async () => {
      const [{ docker }, { ImageStore }] = await Promise.all([
        import('./backends/docker/backend.ts'),
        import('./backends/images/store.ts'),
      ])
      const images = new ImageStore(stateDir)
      const ready = options.stays ? parts.ready() : 0
      const { onProgress } = options
      const backend = docker({
        agent: agentPath(),
        probePlan,
        images,
        stateDir,
        sockets,
        ready,
        onProgress,
        runtime: parts.runtime(),
        ...labelsOf(stateDir),
      })
      closing.push(() => backend.close())
      return backend
    },
  )
}

function lazyGvisor(options: ComposeOptions, parts: RegistryParts, probePlan: () => Plan): Backend {
  const { stateDir } = parts
  const face = {
    name: 'gvisor',
    level: 'gvisor',
    byNameOnly: false,
    emulated: false,
    onRequest: onRequest(options),
    runsImages: true,
  } as const
  return lazy(
    face,
    () => hostFingerprint([systemProgram('runsc') ?? 'runsc', agentPath()]),
    async () => {
      const [{ gvisor }, { ImageStore }] = await Promise.all([
        import('./backends/gvisor/backend.ts'),
        import('./backends/images/store.ts'),
      ])
      const ready = options.stays ? parts.ready() : 0
      const images = new ImageStore(stateDir)
      const { onProgress } = options
      const backend = gvisor({ agent: agentPath(), probePlan, images, stateDir, ready, onProgress })
      parts.closing.push(() => backend.close())
      return backend
    },
  )
}

/** Guests count as run by the processor once one really did, in this life of the host. */
function lazyMicrovm(options: ComposeOptions, parts: RegistryParts, probePlan: () => Plan): Backend {
  const { stateDir } = parts
  const fingerprint = (): string =>
    hostFingerprint([systemProgram('qemu-system-x86_64') ?? 'qemu', agentPath(), kernelRecord(stateDir)])
  const memory = probeMemory<boolean>(stateDir)
  const emulated = (): boolean => memory.load('kvm', fingerprint()) !== true
  const face = {
    name: 'microvm',
    level: 'microvm',
    byNameOnly: false,
    get emulated() {
      return emulated()
    },
    onRequest: onRequest(options),
    runsImages: true,
  } as const
  return lazy(face, fingerprint, async () => {
    const [{ microvm }, { Qemu }, { ImageStore }, { protectedBy }] = await Promise.all([
      import('./backends/microvm/backend.ts'),
      import('./backends/microvm/qemu.ts'),
      import('./backends/images/store.ts'),
      import('./policy/protect.ts'),
    ])
    const ready = options.stays ? parts.ready() : 0
    const shared = { agent: agentPath(), probePlan, images: new ImageStore(stateDir), stateDir, ready }
    const onKvm = (): void => memory.save('kvm', fingerprint(), true)
    const driver = new Qemu({ agent: agentPath(), preload: preloadPath(), accelerator: 'auto', onKvm })
    const { onProgress } = options
    const backend = microvm({ ...shared, driver, emulated, refuses: protectedBy, onProgress })
    parts.closing.push(() => backend.close())
    return backend
  })
}

const kernelRecord = (stateDir: string): string => join(stateDir, 'images', 'microvm', 'kernel.json')
const preloadPath = (): string => join(packageRoot(), 'dist', 'guest', 'ringfence-readonly.so')

/** As long as E2B keeps a sandbox in which nothing runs. */
const REMOTE_IDLE_MS = 300_000

/** SECURITY: the key stays on this side; no command and no record ever sees it. */
function lazyE2b(env: Readonly<Record<string, string>>): Backend {
  const { E2B_API_KEY: apiKey, E2B_DOMAIN: domain = 'e2b.app', E2B_SANDBOX_URL: sandboxUrl } = env
  const apiUrl = (env.E2B_API_URL ?? `https://api.${domain}`).replace(/\/+$/, '')
  const settings = apiKey ? { apiKey, apiUrl, sandboxUrl, domain, template: 'base' } : undefined
  const face = { name: 'e2b', level: 'microvm', byNameOnly: true, emulated: false, runsImages: true } as const
  return lazy(
    face,
    // Whether somebody else's machine answers is asked anew each time.
    () => '',
    async () => {
      const { e2b } = await import('./backends/e2b/backend.ts')
      // @ts-expect-error: E2B's package is a wish of the caller's, not one of ours
      return e2b({ settings, sdk: () => import('e2b'), idleMs: REMOTE_IDLE_MS })
    },
  )
}

/** `RINGFENCE_OPENSHELL_MODE=mirror` stays on this host; `remote` asks the gateway. */
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
    async () => (await import('./backends/openshell/backend.ts')).openshell(settings, registry),
  )
}

/** The smallest real sandbox: nothing granted, everything switched on. */
export function probePlanFor(
  policy: SandboxPolicy,
  observe: (path: string) => Observed,
  stateDir: string,
): Plan {
  const spec = { limits: { wallMs: 10_000 } }
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

/** As many places for changes as the spec could have writable mounts. */
function reviewFor(spec: Spec, stateDir: string, sandboxId: string): Review {
  const count = 1 + (spec.write?.length ?? 0) + (spec.mounts?.length ?? 0)
  const owner = spec.workspace === undefined ? undefined : hostPath(spec.workspace).fact
  return Review.create(stateDir, agentPath(), count, owner, reviewId(sandboxId))
}

/** The proxy is loaded when a sandbox wants one. */
function lazyEgress(
  config: () => Config,
  trail: EventSink,
  env: Readonly<Record<string, string>>,
): (spec: Spec) => Promise<PreparedEgress> {
  return async (spec) => {
    const { egressWith } = await import('./supervisor/egress.ts')
    const allowPrivate = config().network?.allow_private ?? []
    const nodePreload = (): string | undefined => readText(join(packageRoot(), 'guest', 'node', 'proxy.cjs'))
    const systemCertificates = (): string => readText('/etc/ssl/certs/ca-certificates.crt') ?? ''
    return egressWith({ trail, allowPrivate, env, systemCertificates, nodePreload })(spec)
  }
}

/** Beside the built code, found from the source tree as well as from `dist`. */
export function agentPath(): string {
  return join(packageRoot(), 'dist', 'guest', 'ringfence-agent')
}

/** The text of something that is shipped for the inside of sandboxes. */
export const guestFile = (...names: readonly string[]): string =>
  readText(join(packageRoot(), 'guest', ...names)) ?? ''

/** A path in our own package. */
export const packageFile = (...names: readonly string[]): string => join(packageRoot(), ...names)

function packageRoot(): string {
  let dir = dirname(fileURLToPath(import.meta.url))
  while (!existsSync(join(dir, 'package.json')) && dir !== dirname(dir)) dir = dirname(dir)
  return dir
}

/** The parser behind a judgement is the largest part of us; it is loaded when a command comes. */
function judgeWith(config: Config, home: string): Ringfence['judge'] {
  let loaded: Promise<(command: AskedCommand, place: CommandPlace) => Decision> | undefined
  return async (command, place) => {
    loaded ??= loadJudge(config, home)
    return (await loaded)(command, place)
  }
}

async function loadJudge(
  config: Config,
  home: string,
): Promise<(command: AskedCommand, place: CommandPlace) => Decision> {
  const [{ compilePolicy }, { judgeArgv, judgeLine }] = await Promise.all([
    import('./policy/policy.ts'),
    import('./policy/commands/judge.ts'),
  ])
  const policy = compilePolicy(config)
  return (command, place) =>
    'line' in command
      ? judgeLine(policy, command.line, { ...place, home })
      : judgeArgv(policy, command.argv, { ...place, home })
}

async function inspectWith(
  config: Config,
  home: string,
  command: AskedCommand,
  place: CommandPlace,
): Promise<unknown> {
  const [{ compilePolicy }, { inspectArgv, inspectLine }] = await Promise.all([
    import('./policy/policy.ts'),
    import('./policy/commands/judge.ts'),
  ])
  const policy = compilePolicy(config)
  return 'line' in command
    ? inspectLine(policy, command.line, { ...place, home })
    : inspectArgv(policy, command.argv, { ...place, home })
}

/** Opened by the first event, so that a command which records nothing touches no disk. */
function lazyTrail(stateDir: string, database: () => string): TrailSink {
  let open: Promise<TrailSink> | undefined
  return {
    async append(event: Event): Promise<void> {
      open ??= anyTrail(stateDir, database)
      await (await open).append(event)
    },
    async close(): Promise<void> {
      await (await open)?.close()
    },
  }
}

/** Segment files, until a server has taken the trail over into its store. */
async function anyTrail(stateDir: string, database: () => string): Promise<TrailSink> {
  if (!existsSync(trailPaths(stateDir).store)) return openTrail({ home: stateDir })
  const [{ openStore }, { openStoreTrail }] = await Promise.all([
    import('./store/open.ts'),
    import('./audit/open-store-trail.ts'),
  ])
  const store = await openStore({ stateDir, databaseUrl: database() })
  const trail = await openStoreTrail({ home: stateDir, store })
  return {
    append: (event) => trail.append(event),
    close: async () => {
      await trail.close()
      await store.close()
    },
  }
}
