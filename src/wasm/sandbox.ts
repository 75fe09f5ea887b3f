import { resolve } from 'node:path'
import { SandboxError } from '../model/errors.ts'
import type { Json } from '../model/event.ts'
import { number } from '../model/shape.ts'
import { type Capability, parseCapabilities } from '../policy/capability.ts'
import { runArguments } from './abi.ts'
import { answererFor } from './answers.ts'
import type { GuestEntry, GuestJob, LogLine } from './guest-protocol.ts'
import type { RunEnd } from './guest-worker.ts'
import { createHostFunctions } from './host-functions.ts'
import type { HostParts, SkillViolation } from './host-parts.ts'
import { MAX_FRAMES, METER_EXPORTS } from './meter.ts'
import { type LoadedModule, ModuleCache } from './module-cache.ts'
import { type RunError, resultOf } from './outcome.ts'
import { EPOCH_TICK_MS, WasmRunner } from './runner.ts'

export type { LoadedModule } from './module-cache.ts'
export type { RunError, RunErrorCode } from './outcome.ts'

/** Ceilings of every run, named as in `[sandbox]` of the configuration. */
export type WasmSandboxOptions = {
  /** Units of Wasmtime's price list; 0 means that none is left. */
  readonly fuel?: number
  /** Ticks of 100 ms. */
  readonly epochDeadline?: number
  readonly memoryMb?: number
  /** Frames. */
  readonly stack?: number
  /** Shared by several sandboxes; otherwise each has its own. */
  readonly runner?: WasmRunner
}

/** What one run may use. */
export type WasmRunOptions = Pick<HostParts, 'fetcher' | 'memory' | 'env' | 'network'> & {
  /** `ToolInvoke(file_read)`, `NetConnect(host:port)`…: as text, or parsed. Without any, nothing is allowed. */
  readonly grants?: readonly string[] | readonly Capability[]
  readonly workspace?: string
  /** Answers methods that are not built in; each needs `ToolInvoke(method)`. */
  readonly hostCall?: HostParts['tool']
}

/** How a run ended and what it used. */
export type WasmResult = ({ readonly ok: Json } | { readonly error: RunError }) & {
  /** What was used; the whole grant when the fuel or the time ran out. */
  readonly fuel: number
  readonly durationMs: number
  readonly violations: readonly SkillViolation[]
  readonly log: readonly LogLine[]
}

/** SECURITY: an uninterruptible loop ends only with its fuel, so there is a ceiling to what can be asked for. */
export const FUEL_CEILING = 10_000_000_000

const LIMITS = { messageBytes: 1024 * 1024, logBytes: 65_536, logLines: 1000 }

const whole = (value: number, name: string, max: number): number =>
  number({ integer: true, min: 0, max }).parse(value, name)

/** Runs WebAssembly modules that nobody trusts, each call in a fresh instance on a thread of its own. */
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
    this.#modules = new ModuleCache(Math.max(1, whole(memoryMb, 'memoryMb', 4096)))
    this.#runner = options.runner ?? new WasmRunner()
  }

  /** Validates, rewrites and compiles a module once; `run` takes the answer instead of bytes. */
  load(module: Uint8Array): Promise<LoadedModule> {
    return this.#modules.load(module)
  }

  /** Runs a module to its end or to a limit. Throws only for wrong arguments; all else is a result. */
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
      job = this.#job(await this.#loaded(module), input)
    } catch (error) {
      if (error instanceof SandboxError) return done(error)
      throw error
    }
    return done(await this.#runner.run(job, answererFor(host, LIMITS.messageBytes)))
  }

  async #loaded(module: Uint8Array | LoadedModule): Promise<LoadedModule> {
    if (module instanceof Uint8Array) return this.#modules.load(module)
    if (!this.#modules.isOwn(module))
      throw new TypeError('run takes bytes, or what load of the same sandbox gave')
    return module
  }

  /** Ends the threads. */
  close(): void {
    this.#runner.close()
  }

  #job({ module, abi }: LoadedModule, input: Json): GuestJob {
    const entry: GuestEntry =
      abi.kind === 'run' ? { kind: 'run', args: runArguments(abi.params, input) } : { kind: abi.kind }
    return {
      module,
      entry,
      imports: abi.imports,
      exports: METER_EXPORTS,
      initialize: abi.initialize,
      input: JSON.stringify(input),
      fuel: this.#fuel,
      frames: this.#frames,
      limits: LIMITS,
      wallMs: this.#wallMs,
    }
  }
}

function hostParts(options: WasmRunOptions, violations: SkillViolation[]): HostParts {
  const { grants = [], workspace, fetcher, memory, env, network, hostCall } = options
  const parsed = grants.every((grant): grant is Capability => typeof grant !== 'string')
    ? (grants as readonly Capability[])
    : parseCapabilities(grants as readonly string[])
  const record = (violation: SkillViolation): void => {
    // A guest that asks a million times leaves a hundred records, not a million.
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
