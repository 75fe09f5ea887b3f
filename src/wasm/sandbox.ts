import { resolve } from 'node:path'
import { SandboxError } from '../model/errors.ts'
import type { Json } from '../model/event.ts'
import { number } from '../model/shape.ts'
import { type Capability, fixedPart, grantsName, parseCapabilities } from '../policy/grants/capability.ts'
import { type GuestAbi, pluginEntry, runArguments } from './abi.ts'
import { createHostFunctions } from './host/host-functions.ts'
import type { HostParts, SkillViolation } from './host/host-parts.ts'
import { requestHandlerFor } from './host/requests.ts'
import { MAX_FRAMES, METER_EXPORTS } from './meter/meter.ts'
import { type LoadedModule, ModuleCache } from './module-cache.ts'
import { type RunError, resultOf } from './outcome.ts'
import { EPOCH_TICK_MS, WasmRunner } from './runner.ts'
import type { GuestEntry, GuestJob, LogLine } from './worker/guest-protocol.ts'
import type { RunEnd } from './worker/guest-worker.ts'

export type { LoadedModule } from './module-cache.ts'
export type { RunError, RunErrorCode } from './outcome.ts'

/** Limits of every run, named as in `[sandbox]` of the configuration. */
export type WasmSandboxOptions = {
  /** Units of Wasmtime's cost table; 0 means no fuel. */
  readonly fuel?: number
  /** Ticks of 100 ms. */
  readonly epochDeadline?: number
  readonly memoryMb?: number
  /** Maximum call depth, in frames. */
  readonly stack?: number
  /** A pool shared by several sandboxes; by default each sandbox has its own. */
  readonly runner?: WasmRunner
  /** A private directory that keeps metered modules for the next process. */
  readonly cacheDirectory?: string
}

/** Options of one run. */
export type WasmRunOptions = Pick<HostParts, 'fetcher' | 'memory' | 'env' | 'network'> & {
  /** The caller's name: when all threads are busy, callers take turns. */
  readonly caller?: string
  /** `ToolInvoke(file_read)`, `NetConnect(host:port)`…: as text or parsed. Without grants, nothing is allowed. */
  readonly grants?: readonly string[] | readonly Capability[]
  readonly workspace?: string
  /** The function of an Extism plug-in to call, if it exports several. */
  readonly call?: string
  /** The arguments of a WASI program after its name; by default derived from the input. */
  readonly args?: readonly string[]
  /** Handles methods that are not built in; each needs `ToolInvoke(method)`. */
  readonly hostCall?: HostParts['tool']
}

/** The result of a run and the resources it used. */
export type WasmResult = ({ readonly ok: Json } | { readonly error: RunError }) & {
  /** Fuel used; the whole budget when the fuel or the time ran out. */
  readonly fuel: number
  readonly durationMs: number
  readonly violations: readonly SkillViolation[]
  readonly log: readonly LogLine[]
}

/** SECURITY: a loop that cannot be interrupted ends only when its fuel does, so the requested fuel has a maximum. */
const FUEL_CEILING = 10_000_000_000

const LIMITS = { messageBytes: 1024 * 1024, logBytes: 65_536, logLines: 1000 }

const whole = (value: number, name: string, max: number): number =>
  number({ integer: true, min: 0, max }).parse(value, name)

/** Runs untrusted WebAssembly modules, each call in a new instance on its own thread. */
export class WasmSandbox {
  readonly #fuel: number
  readonly #wallMs: number
  readonly #frames: number
  readonly #modules: ModuleCache
  readonly #runner: WasmRunner

  constructor(options: WasmSandboxOptions = {}) {
    const { fuel = 10_000_000, epochDeadline = 10, memoryMb = 64, stack = 1024 } = options
    this.#fuel = whole(fuel, 'fuel', FUEL_CEILING)
    this.#wallMs = Math.max(1, whole(epochDeadline, 'epochDeadline', 10_000_000)) * EPOCH_TICK_MS
    this.#frames = whole(stack, 'stack', MAX_FRAMES)
    this.#modules = new ModuleCache(Math.max(1, whole(memoryMb, 'memoryMb', 4096)), options.cacheDirectory)
    this.#runner = options.runner ?? new WasmRunner()
  }

  /** Validates, rewrites and compiles a module once; pass the result to `run` instead of bytes. */
  load(module: Uint8Array): Promise<LoadedModule> {
    return this.#modules.load(module)
  }

  /** Runs a module until it ends or hits a limit. Throws only for invalid arguments; all other failures are results. */
  async run(
    module: Uint8Array | LoadedModule,
    input: Json = null,
    options: WasmRunOptions = {},
  ): Promise<WasmResult> {
    const violations: SkillViolation[] = []
    const host = createHostFunctions(hostParts(options, violations))
    const started = performance.now()
    const done = (end: RunEnd | SandboxError): WasmResult =>
      resultOf(end, {
        fuel: this.#fuel,
        durationMs: performance.now() - started,
        violations: [...violations],
      })
    this.#runner.warm()
    let job: GuestJob
    try {
      job = this.#job(await this.#loaded(module), input, options)
    } catch (error) {
      if (error instanceof SandboxError) return done(error)
      throw error
    }
    try {
      return done(await this.#runner.run(job, requestHandlerFor(host, LIMITS.messageBytes), options.caller))
    } finally {
      host.close()
    }
  }

  async #loaded(module: Uint8Array | LoadedModule): Promise<LoadedModule> {
    if (module instanceof Uint8Array) return this.#modules.load(module)
    if (!this.#modules.isOwn(module))
      throw new TypeError('run takes bytes, or what load of the same sandbox gave')
    return module
  }

  /** Terminates the threads. */
  close(): void {
    this.#runner.close()
  }

  #job(loaded: LoadedModule, input: Json, options: WasmRunOptions): GuestJob {
    const { env = {} } = options
    return {
      ...guestOf(loaded, input, options),
      exports: METER_EXPORTS,
      args: ['skill', ...(options.args ?? argumentsOf(input))],
      env: Object.entries(env).map(([name, value]) => `${name}=${value}`),
      ...surroundings(options),
      fuel: this.#fuel,
      frames: this.#frames,
      limits: LIMITS,
      wallMs: this.#wallMs,
    }
  }
}

/** The code of a run, and its input as text. */
function guestOf(
  loaded: LoadedModule,
  input: Json,
  options: WasmRunOptions,
): Pick<GuestJob, 'module' | 'entry' | 'imports' | 'initialize' | 'input'> {
  const json = JSON.stringify(input)
  if ('component' in loaded)
    return { module: undefined, entry: loaded.component, imports: [], initialize: false, input: json }
  const { module, abi } = loaded
  const { imports, initialize } = abi
  // A plug-in takes bytes: a string is passed as it is, any other value as JSON.
  const text = abi.kind === 'plugin' && typeof input === 'string' ? input : json
  return { module, entry: entryOf(abi, input, options), imports, initialize, input: text }
}

function entryOf(abi: GuestAbi, input: Json, { call }: WasmRunOptions): GuestEntry {
  if (abi.kind === 'plugin') return pluginEntry(abi, call)
  return abi.kind === 'run' ? { kind: 'run', args: runArguments(abi.params, input) } : { kind: abi.kind }
}

const capabilitiesOf = (grants: WasmRunOptions['grants'] = []): readonly Capability[] =>
  grants.every((grant): grant is Capability => typeof grant !== 'string')
    ? (grants as readonly Capability[])
    : parseCapabilities(grants as readonly string[])

/** The program's environment: preopened directories for granted files; a real clock and random source if granted. */
function surroundings({ grants, workspace }: WasmRunOptions): Pick<GuestJob, 'preopens' | 'real'> {
  const held = capabilitiesOf(grants)
  const named = (name: string): boolean => grantsName(held, 'ToolInvoke', name)
  const files = held.filter(({ kind }) => kind === 'FileRead' || kind === 'FileWrite')
  const here = ['file_read', 'file_write', 'file_list'].some(named) || files.length > 0
  const roots = files.flatMap(
    (grant) => ('root' in grant && grant.root === 'absolute' && fixedPart(grant)) || [],
  )
  const other = [...new Set(roots)].map((path) => ({ name: path, base: path }))
  return {
    preopens: [...(workspace !== undefined && here ? [{ name: '/', base: '' }] : []), ...other],
    real: { clock: named('clock'), random: named('random') },
  }
}

/** Arguments derived from the input: a string is one argument, a list one per entry, any other value its JSON. */
export function argumentsOf(input: Json): readonly string[] {
  if (input === null) return []
  const plain = (value: Json): string => (typeof value === 'string' ? value : JSON.stringify(value))
  return (Array.isArray(input) ? input : [input]).map((value: Json) => plain(value).replaceAll('\0', ''))
}

function hostParts(options: WasmRunOptions, violations: SkillViolation[]): HostParts {
  const { grants = [], workspace, fetcher, memory, env, network, hostCall } = options
  const parsed = capabilitiesOf(grants)
  const record = (violation: SkillViolation): void => {
    // At most 100 violations are recorded, even if a guest causes a million.
    if (violations.length < 100) violations.push(violation)
  }
  const root = workspace === undefined ? undefined : resolve(workspace)
  return {
    grants: parsed,
    workspace: root,
    fetcher,
    memory,
    env,
    network,
    tool: hostCall,
    onViolation: record,
  }
}
