import { createHash, randomBytes } from 'node:crypto'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { homedir, tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import type { AnthropicSdk } from '../adapters/anthropic/environment-client.ts'
import { pathsOf as trailPaths } from '../audit/files.ts'
import { openTrail } from '../audit/trail.ts'
import type { SandboxRegistry } from '../backends/registry.ts'
import { servedCaller } from '../host/broker/served-caller.ts'
import { loadConfig } from '../host/config-file.ts'
import { hostPath } from '../host/files/facts.ts'
import { type PinOptions, pinsOf } from '../host/files/git-pins.ts'
import { ProofStore } from '../host/proof-store.ts'
import { Review, reviewId } from '../host/review/review.ts'
import { Vault } from '../host/secrets/vault.ts'
import { caller, hostMemoryMb, readText } from '../host/system.ts'
import type { Inspected } from '../model/api/policy.ts'
import type { Config } from '../model/config.ts'
import type { Decision } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import type { Event, EventSink, Pace } from '../model/event.ts'
import { OPERATOR, type Requester } from '../model/requester.ts'
import type { Containment } from '../model/risk.ts'
import type { Spec } from '../model/spec.ts'
import { VERSION } from '../model/version.ts'
import type { Behind } from '../policy/containment.ts'
import type { Capability } from '../policy/grants/capability.ts'
import { type TenantGrants, tenantGrants } from '../policy/grants/tenancy.ts'
import { PROTECTION, protectedBy } from '../policy/paths/protect.ts'
import { type Observed, type SandboxPolicy, sandboxPolicyOf } from '../policy/plan.ts'
import type { SkillParts } from '../server/parts.ts'
import type { SkillRunner } from '../skills/runner.ts'
import type { EgressParts, PreparedEgress } from '../supervisor/egress.ts'
import { type AskedCommand, Gate, type WorkingDirectory } from '../supervisor/gate.ts'
import { registryFor } from './backends.ts'
import { agentPath, guestFile, packageFile } from './files.ts'

/** The composition root: the only file that reads the environment and imports every module. */

export type ComposeOptions = {
  /** Path of the configuration file. */
  readonly config?: string | undefined
  /** Path of a file from which only the policy is used. */
  readonly policy?: string | undefined
  readonly env?: NodeJS.ProcessEnv
  readonly cwd?: string
  /** Whether this process is long-lived, so that `[backends] ready` applies. */
  readonly stays?: boolean
  /** Receives progress messages, for example while an image is built. */
  readonly onProgress?: (text: string) => void
  /** Where events are recorded; default: the audit log of the state directory. */
  readonly trail?: TrailSink
  /** Whether sandboxes may act now; absent: always. */
  readonly mayAct?: () => boolean
}

export { agentPath, guestFile, packageFile }

/** What `ringfence prove` found on this host. */
export const proofsOf = ({ stateDir }: Pick<Ringfence, 'stateDir'>): ProofStore =>
  new ProofStore(stateDir, VERSION)

type TrailSink = EventSink & { readonly close: () => Promise<void> }

/** All parts of one process, connected. */
export type Ringfence = {
  readonly config: Config
  readonly stateDir: string
  readonly home: string
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  readonly registry: SandboxRegistry
  readonly gate: Gate
  readonly trail: EventSink
  readonly judge: (command: AskedCommand, directory: WorkingDirectory) => Promise<Decision>
  /** Identifies the current policy. */
  readonly policyHash: () => string
  /** The network modes that the policy permits. */
  readonly networkModes: () => readonly string[]
  /** The current configuration. */
  readonly current: () => Config
  /** The policy file that an operator edits; it may not exist yet. */
  readonly policyFile: string
  /** Checks a command against the policy and returns the tree behind the decision. */
  readonly inspect: (command: AskedCommand, directory: WorkingDirectory) => Promise<Inspected>
  /** Reloads the configuration. An invalid configuration changes nothing. */
  readonly reload: () => Promise<Reloaded>
  /** Seals the audit log. Call it once, after everything has ended. */
  readonly close: () => Promise<void>
}

/** Result of a reload; `secrets` names the secrets whose value changed or was removed. */
type Reloaded = { readonly config: Config; readonly secrets: readonly string[] }

/** The environment of this process, or of the caller that it serves; not read anywhere else. */
export const environment = (): NodeJS.ProcessEnv => servedCaller()?.env ?? process.env

/** State derived from the configuration; a reload replaces it as a whole. */
type InForce = {
  readonly config: Config
  readonly policy: SandboxPolicy
  readonly judge: Ringfence['judge']
  readonly hash: string
}

/** Settings that backends read from the current configuration on each use. */
const backendSettings = (now: () => InForce) => ({
  policy: () => now().policy,
  ready: () => now().config.backends?.ready ?? 0,
  emulates: () => now().config.backends?.emulate ?? false,
  runtime: () => now().config.backends?.docker_runtime,
  microvmDriver: () => now().config.microvm?.driver ?? 'qemu',
  kubernetes: () => now().config.kubernetes,
  isMember: () => now().config.cluster !== undefined,
})

/** Reads the configuration and connects all parts. */
export async function compose(options: ComposeOptions = {}): Promise<Ringfence> {
  const env = definedOnly(options.env ?? environment())
  const stateDir = stateDirectory(env)
  const home = env.HOME ?? homedir()
  const cwd = options.cwd ?? process.cwd()
  let now = inForce(await configFor(options, env), home)
  await assertToolRules(now.config)
  const observe = (path: string): Observed =>
    hostPath(path, (name) => now.policy.blocked.includes(name.toLowerCase()))
  const vault = new Vault(env)
  // Fail at start if a declared secret cannot be read.
  if (options.stays) vault.take(vault.read(now.config.secret ?? []))
  const closing: (() => Promise<void>)[] = [async () => vault.dispose()]
  const registry = registryFor(options, { stateDir, env, observe, closing, ...backendSettings(() => now) })
  // `[backends] order` applies to servers; a single command uses the host's own tools.
  const order = now.config.backends?.order
  if (options.stays && order) registry.setOrder(order)
  const trail = options.trail ?? lazyTrail(stateDir, () => databaseUrl(now.config, env))
  const judge: Ringfence['judge'] = (command, directory) => now.judge(command, directory)
  const gate = new Gate({
    // Read at each check, so that a reload applies to open sandboxes.
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
    egress: lazyEgress(() => now.config, { trail, env, vault, mayAct: options.mayAct }),
    review: (spec, id) => reviewFor(spec, stateDir, id),
  })
  const reload: Ringfence['reload'] = async () => {
    const next = inForce(await configFor(options, env), home)
    // Compiling the rules checks their examples.
    await next.judge({ line: 'true' }, { workspace: '/', cwd: '/' })
    await assertToolRules(next.config)
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
    inspect: (command, directory) => inspectWith(now.config, home, command, directory),
    reload,
    close: async () => {
      for (const close of closing.splice(0)) await close().catch(() => {})
      await trail.close()
    },
  }
}

/** Compiles the rules of `[[mcp]]`, which checks their examples: an invalid configuration never starts. */
async function assertToolRules({ mcp }: Config): Promise<void> {
  if (!mcp) return
  const { compileToolRules } = await import('../policy/mcp/tool-rules.ts')
  for (const server of mcp) compileToolRules(server)
}

/**
 * The restrictions of a key's tenant; none for the operator. SECURITY: a call without a requester is a bug and is
 * rejected.
 */
function grantsOf(config: Config, requester: Requester | undefined, home: string): TenantGrants | undefined {
  if (!requester) throw new SandboxError('internal', 'sandbox requested without a requester')
  const real = (path: string): string | undefined => hostPath(path).fact?.real
  return requester.operator ? undefined : tenantGrants(config, requester.tenant, { home, real })
}

function inForce(config: Config, home: string): InForce {
  const { policy, commands, router, network, backends, secret, tenant, mcp } = config
  const text = JSON.stringify({ policy, commands, router, network, backends, secret, tenant, mcp })
  return {
    config,
    policy: sandboxPolicyOf(config, home),
    judge: judgeWith(config, home),
    hash: createHash('sha256').update(text).digest('hex').slice(0, 16),
  }
}

/** Anthropic's own package, where the caller has installed it. */
export async function anthropicSdk(): Promise<AnthropicSdk> {
  try {
    // @ts-expect-error: an optional dependency of the caller
    return (await import('@anthropic-ai/sdk')) as AnthropicSdk
  } catch (cause) {
    throw new SandboxError(
      'unsupported',
      'the package `@anthropic-ai/sdk` is not installed beside ringfence',
      {
        cause,
        hint: 'npm install @anthropic-ai/sdk (with -g if ringfence is installed globally)',
      },
    )
  }
}

/** The configured database URL; empty means SQLite. */
export const databaseUrl = (config: Config, env: Readonly<Record<string, string>>): string =>
  env.RINGFENCE_DATABASE_URL ?? config.server?.database_url ?? ''

/** A skill runner on these parts; loaded on first use, like the command parser. */
export async function skillRunner(ringfence: Ringfence, end?: () => Promise<void>): Promise<SkillRunner> {
  const { config, stateDir, cwd, env, trail, gate } = ringfence
  // The spec is our own; the manifest's requests were checked before the run.
  const open = (spec: unknown, caller: Requester) =>
    gate.open(spec, { requester: OPERATOR, reachesAs: caller })
  const allowPrivate = (caller: Requester) => gate.policyFor(caller).allowPrivate
  const parts = { config, stateDir, cwd, env, trail, open, allowPrivate, newId, ...(end && { end }) }
  return new (await import('../skills/runner.ts')).SkillRunner(parts)
}

/** A skill runner for a server: only inspected skills, by name, each run in an empty temporary workspace. */
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
        caller: requester,
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

/** SECURITY: never read from the working directory, which an agent or a cloned repository may have written. */
const configFileOf = (options: ComposeOptions, env: Readonly<Record<string, string>>): string | undefined =>
  options.config ??
  env.RINGFENCE_CONFIG ??
  [userConfig(env), '/etc/ringfence/ringfence.toml'].find((file) => existsSync(file))

const userConfig = (env: Readonly<Record<string, string>>): string =>
  join(env.XDG_CONFIG_HOME ?? join(env.HOME ?? homedir(), '.config'), 'ringfence', 'ringfence.toml')

/** Paths of the user's git settings, and the protected names. */
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

/** Image names as in `ImageStore`, whose code is loaded only when needed. */
const isBuiltImage = (stateDir: string, name: string): boolean =>
  /^[a-z0-9][a-z0-9._-]{0,63}$/.test(name) && existsSync(join(stateDir, 'images', `${name}.json`))

/** `RINGFENCE_HOME`, or the XDG state directory. */
export function stateDirectory(env: Readonly<Record<string, string | undefined>>): string {
  if (env.RINGFENCE_HOME) return resolve(env.RINGFENCE_HOME)
  return join(env.XDG_STATE_HOME ?? join(env.HOME ?? homedir(), '.local', 'state'), 'ringfence')
}

/** Where the cluster's key is. */
export const clusterKeyFile = ({ cluster }: Pick<Config, 'cluster'>, stateDir: string): string =>
  cluster?.key_file ?? join(stateDir, 'cluster.key')

/** Creates an unguessable id whose prefix names its kind. */
export const newId = (prefix: string): string => `${prefix}_${randomBytes(10).toString('hex')}`

/** One overlay directory for each writable mount the spec could have. */
function reviewFor(spec: Spec, stateDir: string, sandboxId: string): Review {
  const count = 1 + (spec.write?.length ?? 0) + (spec.mounts?.length ?? 0)
  const owner = spec.workspace === undefined ? undefined : hostPath(spec.workspace).fact
  return Review.create(stateDir, agentPath(), count, owner, reviewId(sandboxId))
}

/** Loads the proxy when a sandbox needs one. */
function lazyEgress(
  config: () => Config,
  parts: Pick<EgressParts, 'trail' | 'env' | 'vault' | 'mayAct'>,
): (spec: Spec, allowPrivate: readonly string[], tenant?: string) => Promise<PreparedEgress> {
  return async (spec, allowPrivate, tenant) => {
    const { egressWith } = await import('../supervisor/egress.ts')
    const nodePreload = (): string | undefined => readText(packageFile('guest', 'node', 'proxy.cjs'))
    const systemCertificates = (): string => readText('/etc/ssl/certs/ca-certificates.crt') ?? ''
    const { secret: declared = [], network } = config()
    const upstreams = network?.upstream ?? []
    const found = { declared, upstreams, allowPrivate, tenant, systemCertificates, nodePreload }
    return egressWith({ ...parts, ...found })(spec)
  }
}

/** Loads the command parser, the largest part of the program, with the first command. */
function judgeWith(config: Config, home: string): Ringfence['judge'] {
  let loaded: Promise<(command: AskedCommand, directory: WorkingDirectory) => Decision> | undefined
  return async (command, directory) => {
    loaded ??= loadJudge(config, home)
    return (await loaded)(command, directory)
  }
}

async function loadJudge(
  config: Config,
  home: string,
): Promise<(command: AskedCommand, directory: WorkingDirectory) => Decision> {
  const [{ compilePolicy }, { judgeArgv, judgeLine }, { containedBy }] = await Promise.all([
    import('../policy/policy.ts'),
    import('../policy/commands/judge.ts'),
    import('../policy/containment.ts'),
  ])
  const policy = compilePolicy(config)
  return (command, directory) => {
    const context = contextOf(directory, home, containedBy)
    return 'line' in command
      ? judgeLine(policy, command.line, context)
      : judgeArgv(policy, command.argv, context)
  }
}

async function inspectWith(
  config: Config,
  home: string,
  command: AskedCommand,
  directory: WorkingDirectory,
): Promise<Inspected> {
  const [{ compilePolicy }, { inspectArgv, inspectLine }, { containedBy }] = await Promise.all([
    import('../policy/policy.ts'),
    import('../policy/commands/judge.ts'),
    import('../policy/containment.ts'),
  ])
  const policy = compilePolicy(config)
  const context = contextOf(directory, home, containedBy)
  return 'line' in command
    ? inspectLine(policy, command.line, context)
    : inspectArgv(policy, command.argv, context)
}

/** `~` in the operator's rules is the operator's home directory, for every caller. */
function contextOf(
  { behind, ...directory }: WorkingDirectory,
  home: string,
  containedBy: (behind: Behind) => Containment,
) {
  return { home, ...directory, rulesHome: home, ...(behind && { contains: containedBy(behind) }) }
}

/** Opened by the first event, so that a command that records nothing does not touch the disk. */
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

/** Segment files, until a server has moved the audit log into its store. */
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
