import { readFileSync } from 'node:fs'
import type { Wrapped } from './backends/backend.ts'
import { canWrap } from './backends/backend.ts'
import { agentPath, type ComposeOptions, compose, type Ringfence, skillRunner } from './compose/compose.ts'
import { writeAtomically } from './host/files/atomic-file.ts'
import { checkTimeout, inLibraryWords, LibrarySandbox } from './library-sandbox.ts'
import { SandboxError } from './model/errors.ts'
import type { Plan } from './model/plan.ts'
import type { NetworkMode, Preset, Spec } from './model/spec.ts'
import type { Context } from './policy/commands/judge.ts'
import { ExecPolicy as Rules } from './policy/exec-policy.ts'
import type { SkillRunner as OpenSkillRunner } from './skills/runner.ts'

/** An open sandbox. */
export type Sandbox = LibrarySandbox

/** The sandboxes of this process that are open, by id, and by the name that `getOrCreate` gave. */
const OPEN = new Map<string, LibrarySandbox>()
const NAMED = new Map<string, { readonly spec: string; readonly made: Promise<LibrarySandbox> }>()

/** How the library opens a sandbox. */
export type SandboxOptions = ComposeOptions & {
  /** Closes the sandbox after this time, unless `extendTimeout` moves its end. Absent: it stays open until `close`. */
  readonly timeoutMs?: number
}

/** Creates sandboxes, and finds those of this process. */
export const Sandbox = {
  /**
   * Judges the spec, opens it on the strongest backend that provides everything it needs, or throws.
   *
   *     const sandbox = await Sandbox.create({ workspace: '/home/me/project', limits: { memoryMb: 512 } })
   */
  async create(spec: Spec = {}, { timeoutMs, ...options }: SandboxOptions = {}): Promise<LibrarySandbox> {
    checkTimeout(timeoutMs)
    const ringfence = await compose(options)
    try {
      const open = await inLibraryWords(() => ringfence.gate.open(spec))
      const sandbox = new LibrarySandbox(open, timeoutMs)
      OPEN.set(sandbox.id, sandbox)
      onEnd(sandbox, () => void OPEN.delete(sandbox.id))
      open.onClose(() => ringfence.close())
      return sandbox
    } catch (error) {
      await ringfence.close()
      throw error
    }
  },

  /** The open sandbox of this process with this id. */
  get(id: string): LibrarySandbox {
    const found = OPEN.get(id)
    if (found) return found
    throw new SandboxError('sandbox-not-found', `this process has no open sandbox \`${id}\``, {
      hint: 'sandboxes of a server are found with RingfenceClient.get',
    })
  },

  /**
   * The open sandbox of this process with this name, or a new one; refused if it is open with another spec.
   *
   *     const sandbox = await Sandbox.getOrCreate('tests', { workspace: '/home/me/project' })
   */
  async getOrCreate(name: string, spec: Spec = {}, options: SandboxOptions = {}): Promise<LibrarySandbox> {
    const known = NAMED.get(name)
    const asked = JSON.stringify(spec)
    // SECURITY: a sandbox of another spec may permit more than this caller asked for.
    if (known && known.spec !== asked)
      throw new SandboxError('conflict', `the sandbox \`${name}\` is open with another spec`, {
        hint: 'close it first, or choose another name',
      })
    if (known) return known.made
    const made = Sandbox.create(spec, options)
    NAMED.set(name, { spec: asked, made })
    const forget = (): void => void (NAMED.get(name)?.made === made && NAMED.delete(name))
    made.then((sandbox) => onEnd(sandbox, forget), forget)
    return made
  },
}

/** Calls the action when the sandbox ends by itself or is closed; before `ended` resolves for the caller. */
function onEnd(sandbox: LibrarySandbox, action: () => void): void {
  sandbox.ended.then(action, action)
  sandbox.onClose(action)
}

/** Inspects and runs skills. */
export type SkillRunner = OpenSkillRunner

/** Creates skill runners. */
export const SkillRunner = {
  /** Inspects and runs skills under this configuration, until it is closed. */
  async create(options: ComposeOptions = {}): Promise<OpenSkillRunner> {
    const ringfence = await compose(options)
    return skillRunner(ringfence, () => ringfence.close())
  },
}

/**
 * The command that runs `argv` behind the wall, for callers who drive their own process. Start `command` with `args`,
 * `env` and `cwd` exactly as given, and call `dispose()` when it has ended.
 */
export async function wrap(
  spec: Spec,
  argv: readonly string[],
  options: ComposeOptions = {},
): Promise<Wrapped> {
  const [program, ...rest] = argv
  if (!program) throw new SandboxError('no-command', 'no command was given')
  if (program === agentPath()) throw new SandboxError('already-wrapped', 'this command is wrapped already')
  const ringfence = await compose(options)
  try {
    const plan = ringfence.gate.plan(spec)
    refuseUnheldLimits(plan)
    const backend = await ringfence.registry.select(plan)
    if (!canWrap(backend))
      throw new SandboxError('unsupported', `${backend.name} cannot wrap a process of yours`)
    await ringfence.gate.admit({ argv: [program, ...rest] }, plan, backend)
    return await backend.wrap(plan, { argv: [program, ...rest] })
  } finally {
    await ringfence.close()
  }
}

/** SECURITY: time and output can only be limited by the process that reads the output, here the caller: refused, not ignored. */
function refuseUnheldLimits({ limits }: Plan): void {
  const unheld = (['wallMs', 'idleMs', 'outputBytes'] as const).filter((name) => limits[name] !== undefined)
  if (unheld.length === 0) return
  throw new SandboxError(
    'unsupported',
    `a wrapped process is yours: ${unheld.join(', ')} cannot be held for it`,
    {
      hint: 'leave them out and end the process yourself, or use Sandbox.create',
    },
  )
}

/** Short names for network modes, as the builder takes them. */
const NETWORK = { deny: 'offline', loopback: 'loopback', open: 'full' } as const satisfies Record<
  string,
  NetworkMode
>

/** Builds a spec step by step. Single use: `wrap` can be called once. */
export class SandboxBuilder {
  readonly #options: ComposeOptions
  #spec: { -readonly [K in keyof Spec]: Spec[K] } = {}
  #used = false

  constructor(backend?: string, options: ComposeOptions = {}) {
    this.#options = options
    if (backend !== undefined) this.#spec.backend = backend
  }

  withReadPaths(...paths: readonly string[]): this {
    return this.#set({ read: [...(this.#spec.read ?? []), ...paths] })
  }

  withWritePaths(...paths: readonly string[]): this {
    return this.#set({ write: [...(this.#spec.write ?? []), ...paths] })
  }

  withNetwork(mode: keyof typeof NETWORK | NetworkMode): this {
    const known = Object.hasOwn(NETWORK, mode) ? NETWORK[mode as keyof typeof NETWORK] : (mode as NetworkMode)
    return this.#set({ network: { mode: known } })
  }

  withUnixSockets(...paths: readonly string[]): this {
    return this.#set({ unixSockets: [...(this.#spec.unixSockets ?? []), ...paths] })
  }

  #set(fields: Partial<Spec>): this {
    if (this.#used) throw new SandboxError('already-wrapped', 'this builder has been used')
    Object.assign(this.#spec, fields)
    return this
  }

  /** The backend that would be used here. */
  async backend(): Promise<string> {
    const ringfence: Ringfence = await compose(this.#options)
    return (await ringfence.registry.select(ringfence.gate.plan(this.#spec))).name
  }

  async wrap(argv: readonly string[]): Promise<Wrapped> {
    if (this.#used) throw new SandboxError('already-wrapped', 'this builder has been used')
    this.#used = true
    return wrap(this.#spec, argv, this.#options)
  }
}

/** A spec for one of the three tiers; `workspace` is what the middle one may write. */
export function createSandboxConfigForMode(mode: Preset, workspace: string): Spec {
  const network: NetworkMode = mode === 'danger-full-access' ? 'full' : 'offline'
  return { preset: mode, workspace, network: { mode: network } }
}

/** A policy object that can be loaded from and saved to a file. */
export class ExecPolicy extends Rules {
  /** Atomic, readable by its owner alone. */
  save(file: string): void {
    writeAtomically(file, `${JSON.stringify(this, null, 2)}\n`)
  }

  /** A file that cannot be read whole is an error: rules never vanish. */
  static load(file: string, context: Context): ExecPolicy {
    const { rules, default_action } = Rules.fromJSON(JSON.parse(readFileSync(file, 'utf8')), context).toJSON()
    return new ExecPolicy({ policy: { rule: rules, default_action } }, context)
  }
}
