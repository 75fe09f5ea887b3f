import { createHash, randomBytes } from 'node:crypto'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { pathsOf as trailPaths } from '../audit/files.ts'
import { openTrail } from '../audit/trail.ts'
import type { SandboxRegistry } from '../backends/registry.ts'
import { loadConfig } from '../host/config-file.ts'
import { hostPath } from '../host/files/facts.ts'
import { type PinOptions, pinsOf } from '../host/files/git-pins.ts'
import { Review, reviewId } from '../host/review/review.ts'
import { Vault } from '../host/secrets/vault.ts'
import { caller, hostMemoryMb, readText } from '../host/system.ts'
import type { Inspected } from '../model/api/policy.ts'
import type { Config } from '../model/config.ts'
import type { Decision } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import type { Event, EventSink, Pace } from '../model/event.ts'
import { OPERATOR, type Requester } from '../model/requester.ts'
import type { Spec } from '../model/spec.ts'
import type { Capability } from '../policy/grants/capability.ts'
import { type TenantGrants, tenantGrants } from '../policy/grants/tenancy.ts'
import { PROTECTION, protectedBy } from '../policy/paths/protect.ts'
import { type Observed, type SandboxPolicy, sandboxPolicyOf } from '../policy/plan.ts'
import type { SkillParts } from '../server/parts.ts'
import type { SkillRunner } from '../skills/runner.ts'
import type { EgressParts, PreparedEgress } from '../supervisor/egress.ts'
import { type AskedCommand, Gate, type WorkingDirectory } from '../supervisor/gate.ts'
import { orderBy, registryFor } from './backends.ts'
import { agentPath, guestFile, packageFile } from './files.ts'

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

export { agentPath, guestFile, packageFile }

type TrailSink = EventSink & { readonly close: () => Promise<void> }

export type Ringfence = {
  readonly config: Config
  readonly stateDir: string
  readonly home: string
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  readonly registry: SandboxRegistry
  readonly gate: Gate
  readonly trail: EventSink
  readonly judge: (command: AskedCommand, place: WorkingDirectory) => Promise<Decision>
  /** Names the policy in force. */
  readonly policyHash: () => string
  /** The network modes that it has. */
  readonly networkModes: () => readonly string[]
  /** The configuration as it is now. */
  readonly current: () => Config
  /** The file that an operator edits to change the policy; it may not exist yet. */
  readonly policyFile: string
  /** Judges a command and keeps the tree behind the decision. */
  readonly inspect: (command: AskedCommand, place: WorkingDirectory) => Promise<Inspected>
  /** Reads the configuration anew. When anything in it is wrong, everything stays as it was. */
  readonly reload: () => Promise<Reloaded>
  /** Seals the trail. Call it once, when nothing runs any more. */
  readonly close: () => Promise<void>
}

/** What a reload brought; `secrets` names those that have another value now, or none. */
type Reloaded = { readonly config: Config; readonly secrets: readonly string[] }

/** The environment of this process; read nowhere else. */
export const environment = (): NodeJS.ProcessEnv => process.env

/** What a configuration decides; replaced as a whole. */
type InForce = {
  readonly config: Config
  readonly policy: SandboxPolicy
  readonly judge: Ringfence['judge']
  readonly hash: string
}

/** What backends read of the configuration in force, each time they need it. */
const backendSettings = (now: () => InForce) => ({
  policy: () => now().policy,
  ready: () => now().config.backends?.ready ?? 0,
  emulates: () => now().config.backends?.emulate ?? false,
  runtime: () => now().config.backends?.docker_runtime,
  microvmDriver: () => now().config.microvm?.driver ?? 'qemu',
})

export async function compose(options: ComposeOptions = {}): Promise<Ringfence> {
  const env = definedOnly(options.env ?? environment())
  const stateDir = stateDirectory(env)
  const home = env.HOME ?? homedir()
  const cwd = options.cwd ?? process.cwd()
  let now = inForce(await configFor(options, env), home)
  const observe = (path: string): Observed =>
    hostPath(path, (name) => now.policy.blocked.includes(name.toLowerCase()))
  const vault = new Vault(env)
  // A server that could not lend what it was told to says so before anybody asks.
  if (options.stays) vault.take(vault.read(now.config.secret ?? []))
  const closing: (() => Promise<void>)[] = [async () => vault.dispose()]
  const registry = registryFor(options, { stateDir, env, observe, closing, ...backendSettings(() => now) })
  // It governs servers; a command that runs here means the host's own tools.
  if (options.stays) orderBy(registry, now.config.backends?.order)
  const trail = options.trail ?? lazyTrail(stateDir, () => databaseUrl(now.config, env))
  const judge: Ringfence['judge'] = (command, place) => now.judge(command, place)
  const gate = new Gate({
    // Read at each judgement, so that a reload holds for sandboxes that are already open.
    get policy() {
      return now.policy
    },
    ...(options.stays && {
      grantsOf: (requester: Requester | undefined) => grantsOf(now.config, requester, home),
      allowNative: () => now.config.backends?.allow_native ?? false,
    }),
    registry,
    trail,
    judge,
    observe,
    pins: (path) => pinsOf(path, pinOptions(env, home)),
    host: hostFacts(stateDir, home, cwd),
    newId,
    egress: lazyEgress(() => now.config, { trail, env, vault }),
    review: (spec, id) => reviewFor(spec, stateDir, id),
  })
  const reload: Ringfence['reload'] = async () => {
    const next = inForce(await configFor(options, env), home)
    // A rule whose examples lie shows only when it is compiled.
    await next.judge({ line: 'true' }, { workspace: '/', cwd: '/' })
    const secrets = vault.take(vault.read(next.config.secret ?? []))
    now = next
    return { config: next.config, secrets }
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
    inspect: (command, place) => inspectWith(now.config, home, command, place),
    reload,
    close: async () => {
      for (const close of closing.splice(0)) await close().catch(() => {})
      await trail.close()
    },
  }
}

/**
 * What limits a key of a server; nothing for the operator's. SECURITY: a caller that forgot to say who asks is a defect, and
 * gets nothing.
 */
function grantsOf(config: Config, requester: Requester | undefined, home: string): TenantGrants | undefined {
  if (!requester) throw new SandboxError('internal', 'a sandbox was asked for in nobody’s name')
  const real = (path: string): string | undefined => hostPath(path).fact?.real
  return requester.operator ? undefined : tenantGrants(config, requester.tenant, { home, real })
}

function inForce(config: Config, home: string): InForce {
  const { policy, commands, router, network, backends, secret, tenant } = config
  const text = JSON.stringify({ policy, commands, router, network, backends, secret, tenant })
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
  // The spec is ours; what the skill's manifest may ask of the host was judged before it ran.
  const open = (spec: unknown) => gate.open(spec, { requester: OPERATOR })
  const parts = { config, stateDir, cwd, env, trail, open, newId, ...(end && { end }) }
  return new (await import('../skills/runner.ts')).SkillRunner(parts)
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
    async list() {
      const { skillJson } = await import('../skills/contract.ts')
      return (await (await skills()).details()).map(skillJson)
    },
    async run(name, input, requester) {
      const workspace = mkdtempSync(join(tmpdir(), 'ringfence-work-'))
      const given = {
        input: input ?? null,
        agentId: requester.tenant,
        workspace,
        inspectedOnly: true,
        authorize: (grants: readonly Capability[]) => ringfence.gate.assertCapabilities(requester, grants),
      }
      try {
        const { resultJson } = await import('../skills/contract.ts')
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

/** Where git's settings of the user lie, and which names are protected. */
const pinOptions = (env: Readonly<Record<string, string | undefined>>, home: string): PinOptions => ({
  home,
  globals: [
    '/etc/gitconfig',
    join(env.XDG_CONFIG_HOME ?? join(home, '.config'), 'git', 'config'),
    env.GIT_CONFIG_GLOBAL ?? join(home, '.gitconfig'),
  ],
  isProtected: (name) => protectedBy(PROTECTION, name) !== undefined,
  skip: PROTECTION.exceptBelow,
})

const hostFacts = (stateDir: string, home: string, cwd: string) => ({
  uid: caller().uid,
  home,
  stateDir,
  hostMemoryMb: hostMemoryMb(),
  cwd,
  isBuiltImage: (name: string) => isBuiltImage(stateDir, name),
})

/** Names as `ImageStore` gives them: its code is loaded only for what needs it. */
const isBuiltImage = (stateDir: string, name: string): boolean =>
  /^[a-z0-9][a-z0-9._-]{0,63}$/.test(name) && existsSync(join(stateDir, 'images', `${name}.json`))

/** `RINGFENCE_HOME`, or the XDG state directory. */
export function stateDirectory(env: Readonly<Record<string, string | undefined>>): string {
  if (env.RINGFENCE_HOME) return resolve(env.RINGFENCE_HOME)
  return join(env.XDG_STATE_HOME ?? join(env.HOME ?? homedir(), '.local', 'state'), 'ringfence')
}

/** Ids are unguessable; their prefix says what they name. */
export const newId = (prefix: string): string => `${prefix}_${randomBytes(10).toString('hex')}`

/** As many places for changes as the spec could have writable mounts. */
function reviewFor(spec: Spec, stateDir: string, sandboxId: string): Review {
  const count = 1 + (spec.write?.length ?? 0) + (spec.mounts?.length ?? 0)
  const owner = spec.workspace === undefined ? undefined : hostPath(spec.workspace).fact
  return Review.create(stateDir, agentPath(), count, owner, reviewId(sandboxId))
}

/** The proxy is loaded when a sandbox wants one. */
function lazyEgress(
  config: () => Config,
  parts: Pick<EgressParts, 'trail' | 'env' | 'vault'>,
): (spec: Spec, allowPrivate: readonly string[]) => Promise<PreparedEgress> {
  return async (spec, allowPrivate) => {
    const { egressWith } = await import('../supervisor/egress.ts')
    const nodePreload = (): string | undefined => readText(packageFile('guest', 'node', 'proxy.cjs'))
    const systemCertificates = (): string => readText('/etc/ssl/certs/ca-certificates.crt') ?? ''
    const declared = config().secret ?? []
    return egressWith({ ...parts, declared, allowPrivate, systemCertificates, nodePreload })(spec)
  }
}

/** The parser behind a judgement is the largest part of us; it is loaded when a command comes. */
function judgeWith(config: Config, home: string): Ringfence['judge'] {
  let loaded: Promise<(command: AskedCommand, place: WorkingDirectory) => Decision> | undefined
  return async (command, place) => {
    loaded ??= loadJudge(config, home)
    return (await loaded)(command, place)
  }
}

async function loadJudge(
  config: Config,
  home: string,
): Promise<(command: AskedCommand, place: WorkingDirectory) => Decision> {
  const [{ compilePolicy }, { judgeArgv, judgeLine }] = await Promise.all([
    import('../policy/policy.ts'),
    import('../policy/commands/judge.ts'),
  ])
  const policy = compilePolicy(config)
  return (command, place) =>
    'line' in command
      ? judgeLine(policy, command.line, contextOf(place, home))
      : judgeArgv(policy, command.argv, contextOf(place, home))
}

async function inspectWith(
  config: Config,
  home: string,
  command: AskedCommand,
  place: WorkingDirectory,
): Promise<Inspected> {
  const [{ compilePolicy }, { inspectArgv, inspectLine }] = await Promise.all([
    import('../policy/policy.ts'),
    import('../policy/commands/judge.ts'),
  ])
  const policy = compilePolicy(config)
  return 'line' in command
    ? inspectLine(policy, command.line, contextOf(place, home))
    : inspectArgv(policy, command.argv, contextOf(place, home))
}

/** The operator's rules mean the operator's home directory, whoever's command they are asked about. */
const contextOf = (place: WorkingDirectory, home: string) => ({ home, ...place, rulesHome: home })

/** Opened by the first event, so that a command which records nothing touches no disk. */
function lazyTrail(stateDir: string, database: () => string): TrailSink {
  let open: Promise<TrailSink> | undefined
  return {
    async append(event: Event, pace?: Pace): Promise<void> {
      open ??= anyTrail(stateDir, database)
      await (await open).append(event, pace)
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
    import('../store/open.ts'),
    import('../audit/open-store-trail.ts'),
  ])
  const store = await openStore({ stateDir, databaseUrl: database() })
  const trail = await openStoreTrail({ home: stateDir, store })
  return {
    append: (event, pace) => trail.append(event, pace),
    close: async () => {
      await trail.close()
      await store.close()
    },
  }
}
