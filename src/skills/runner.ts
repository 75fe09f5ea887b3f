import { existsSync, realpathSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { resolveFor } from '../egress/upstream/names.ts'
import { Admission } from '../model/admission.ts'
import type { SkillUsage } from '../model/api/skills.ts'
import type { Config } from '../model/config.ts'
import { SandboxError } from '../model/errors.ts'
import type { Json } from '../model/event.ts'
import { OPERATOR } from '../model/requester.ts'
import { type Capability, escalations, grantsName, parseCapabilities } from '../policy/grants/capability.ts'
import { networkPolicyOf } from '../policy/network/network.ts'
import { publicFetcher } from '../wasm/host/fetch.ts'
import type { SkillViolation } from '../wasm/host/host-parts.ts'
import { MAX_FRAMES } from '../wasm/meter/meter.ts'
import { type RunError, WasmSandbox, type WasmSandboxOptions } from '../wasm/sandbox.ts'
import type { ListedSkill, SkillResult, SkillRunnerParts, SkillRunOptions } from './contract.ts'
import { grantsOf, type Inspection, inspectSkill } from './inspect.ts'
import { memoryOf } from './memory.ts'
import { readSkill, type SkillPackage } from './package.ts'
import { requestChanges, SkillRegister } from './register.ts'
import { runScript } from './script.ts'
import { type SkillSignature, SkillSignatures } from './signature.ts'
import { UsageLog } from './usage.ts'

type Run = {
  readonly skill: SkillPackage
  readonly input: Json
  readonly grants: readonly Capability[]
  readonly explicit: readonly Capability[]
  readonly options: SkillRunOptions
}
type Ended = Omit<SkillResult, 'skill' | 'execId' | 'hash' | 'withheld' | 'violations'> & {
  readonly violations: readonly (SkillViolation & { readonly recorded?: boolean })[]
} & ({ readonly ok: Json } | { readonly error: RunError })

const LOOK = 'run `ringfence skill inspect`'

/** An inspection, compared with the last one. */
export type InspectedSkill = Inspection & {
  readonly changed: boolean
  /** Requests that the skill has in addition to those of the last inspection, and those it no longer has. */
  readonly added: readonly string[]
  readonly removed: readonly string[]
  readonly signature: SkillSignature
}

/** Inspects and runs skills and records their usage. Every run is recorded before and after. */
export class SkillRunner implements AsyncDisposable {
  readonly #parts: SkillRunnerParts
  readonly #register: SkillRegister
  readonly #usage: UsageLog
  readonly #admission: Admission
  /** Signatures of skills, and the keys that the user trusts. */
  readonly signatures: SkillSignatures
  #wasm: WasmSandbox | undefined

  constructor(parts: SkillRunnerParts) {
    this.#parts = parts
    this.#register = new SkillRegister(parts.stateDir)
    this.signatures = new SkillSignatures(parts.stateDir)
    this.#usage = new UsageLog(parts.stateDir)
    const running = parts.config.sandbox?.subprocess_max_concurrent ?? 10
    this.#admission = new Admission('skills', { running, waiting: Number.POSITIVE_INFINITY, strict: true })
  }

  /** Reads a skill, reports its requested capabilities and stores its hash, so that a later run can detect a change. */
  async inspect(target: string): Promise<InspectedSkill> {
    const skill = await this.#read(target)
    const before = this.#register.of(skill)
    const inspection = inspectSkill(skill)
    this.#register.add(skill)
    return {
      ...inspection,
      changed: before !== undefined && before.hash !== skill.hash,
      ...requestChanges(before, skill),
      signature: this.signatures.check(skill),
    }
  }

  /** Reads a skill without inspecting or running it. */
  read(target: string): Promise<SkillPackage> {
    return this.#read(target)
  }

  /** Runs a skill by directory, or by the name of an inspected skill. Throws if the run is refused before it starts. */
  async run(target: string, options: SkillRunOptions = {}): Promise<SkillResult> {
    const skill = await this.#read(target, options.inspectedOnly)
    const { name } = skill.manifest.skill
    const execId = this.#parts.newId('ex')
    const who = { exec_id: execId, skill: name, ...(options.agentId && { agent_id: options.agentId }) }
    try {
      this.#refuseUnseen(skill, options)
      const { granted, withheld, explicit } = this.#grants(skill, options)
      options.authorize?.(granted)
      const grants = granted.map(({ text }) => text)
      await this.#parts.trail.append({
        event: 'SkillRun',
        ...who,
        state: 'started',
        skill_hash: skill.hash,
        grants,
      })
      const run: Run = { skill, input: options.input ?? null, grants: granted, explicit, options }
      const ended = await (skill.manifest.runtime.type === 'wasm' ? this.#runWasm(run) : this.#runScript(run))
      const result: SkillResult = {
        ...ended,
        violations: ended.violations.map(({ violationType, details }) => ({ violationType, details })),
        skill: name,
        execId,
        hash: skill.hash,
        withheld: withheld.map(({ text }) => text),
      }
      await this.#record(result, ended, options.agentId)
      return result
    } catch (error) {
      if (error instanceof SandboxError) await this.#recordRefusal(error, who)
      throw error
    }
  }

  /** Usage per skill name, for one agent or for all. */
  usage(agentId?: string): readonly SkillUsage[] {
    return this.#usage.read(agentId)
  }

  /** The inspected skills, and whether each has changed since its inspection. */
  async list(): Promise<readonly ListedSkill[]> {
    const entries = Object.entries(this.#register.all()).sort(([a], [b]) => (a < b ? -1 : 1))
    return Promise.all(
      entries.map(async ([name, { dir, hash }]): Promise<ListedSkill> => {
        const skill = await readSkill(dir).catch(() => undefined)
        if (!skill) return { name, dir, hash, version: undefined, runtime: undefined, state: 'missing' }
        const { skill: own, runtime } = skill.manifest
        const state = skill.hash === hash ? 'unchanged' : 'changed'
        return { name, dir, hash: skill.hash, version: own.version, runtime: runtime.type, state }
      }),
    )
  }

  /** The same with the requested capabilities; a skill that cannot be read has only an error. */
  async details(): Promise<readonly (ListedSkill & { readonly inspection?: Inspection })[]> {
    return Promise.all(
      (await this.list()).map(async (listed) => {
        const skill =
          listed.state === 'missing' ? undefined : await readSkill(listed.dir).catch(() => undefined)
        return skill ? { ...listed, inspection: inspectSkill(skill) } : listed
      }),
    )
  }

  /** Ends the threads of WebAssembly skills and frees the runner's resources. Idempotent. */
  async close(): Promise<void> {
    this.#wasm?.close()
    this.#wasm = undefined
    await this.#parts.end?.()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  /**
   * Accepts the name of an inspected skill, or a directory with a skill.toml.
   * SECURITY: the name takes precedence: a directory of that name in the workspace must not shadow the skill.
   */
  async #read(target: string, inspectedOnly = false): Promise<SkillPackage> {
    const known = this.#register.all()
    const entry = Object.hasOwn(known, target) ? known[target] : undefined
    if (entry) return readSkill(entry.dir)
    const dir = resolve(this.#parts.cwd, target)
    if (!inspectedOnly && existsSync(join(dir, 'skill.toml'))) return readSkill(realpathSync(dir))
    throw new SandboxError('skill-not-found', `there is no skill \`${target}\``, {
      hint: 'name a directory that holds skill.toml, or a skill of `ringfence skill list`',
    })
  }

  /** SECURITY: what was inspected is what runs; `[skills]` can demand an inspection and a trusted signature. */
  #refuseUnseen(skill: SkillPackage, { notice }: SkillRunOptions): void {
    const { require_inspection = false, require_signature = false } = this.#parts.config.skills ?? {}
    const { name } = skill.manifest.skill
    const before = this.#register.of(skill)
    if (before === undefined && require_inspection)
      throw new SandboxError('skill-not-inspected', `\`${name}\` was never inspected`, { hint: LOOK })
    if (before !== undefined && before.hash !== skill.hash) {
      const { added } = requestChanges(before, skill)
      const more = added.length === 0 ? '' : ` and requests more: ${added.join(', ')}`
      throw new SandboxError('skill-changed', `\`${name}\` has changed since it was inspected${more}`, {
        hint: `${LOOK}, and look at it again`,
      })
    }
    const { state } = this.signatures.check(skill)
    if (state === 'invalid' || (require_signature && state !== 'trusted'))
      throw new SandboxError('skill-untrusted', `the signature of \`${name}\` is ${state}`, {
        hint: 'see `ringfence skill verify`; `ringfence skill trust KEY` trusts the key of a signer',
      })
    if (before === undefined) notice?.(`\`${name}\` was never inspected: ${LOOK}`)
  }

  #grants(
    skill: SkillPackage,
    { grants = [], parent }: SkillRunOptions,
  ): {
    readonly granted: readonly Capability[]
    readonly withheld: readonly Capability[]
    readonly explicit: readonly Capability[]
  } {
    const explicit = parseCapabilities(grants)
    const asked = grantsOf(skill)
    const own = parseCapabilities(Object.keys(skill.manifest.env ?? {}).map((name) => `EnvRead(${name})`))
    const granted = [...asked.granted, ...explicit]
    const more = parent === undefined ? [] : escalations(parseCapabilities(parent), granted)
    if (more[0])
      throw new SandboxError(
        'capability-denied',
        `privilege escalation: the skill asks for \`${more[0].text}\``,
      )
    return { granted: [...granted, ...own], withheld: escalations(explicit, asked.withheld), explicit }
  }

  /** The manifest's variables, and the host variables that the caller grants by exact name. */
  #variables({ skill, explicit }: Run): Readonly<Record<string, string>> {
    const named = Object.entries(this.#parts.env).filter(
      ([name]) =>
        explicit.some(({ text }) => !text.includes('*')) &&
        grantsName(
          explicit.filter(({ text }) => !text.includes('*')),
          'EnvRead',
          name,
        ),
    )
    return { ...Object.fromEntries(named), ...skill.manifest.env }
  }

  async #runWasm(run: Run): Promise<Ended> {
    const { skill, input, grants, options } = run
    const { config, stateDir, cwd } = this.#parts
    const { tenant } = options.caller ?? OPERATOR
    const allowPrivate = this.#parts.allowPrivate(options.caller ?? OPERATOR)
    const cacheDirectory = join(stateDir, 'wasm')
    this.#wasm ??= new WasmSandbox({ ...wasmLimits(config), cacheDirectory, ...this.#parts.wasm })
    const result = await this.#wasm.run(skill.entry.bytes, input, {
      caller: options.agentId ?? '',
      grants,
      workspace: resolve(cwd, options.workspace ?? '.'),
      env: this.#variables(run),
      memory: memoryOf(stateDir, options.agentId ?? ''),
      network: networkPolicyOf({ allowPrivate }),
      fetcher: publicFetcher({ allowPrivate, resolve: resolveFor({ tenant, keyId: options.agentId ?? '' }) }),
      ...(skill.manifest.runtime.function !== undefined && { call: skill.manifest.runtime.function }),
    })
    return { ...result, truncated: false }
  }

  #runScript(run: Run): Promise<Ended> {
    const { config, cwd, open, allowPrivate } = this.#parts
    const { options } = run
    const caller = options.caller ?? OPERATOR
    const { subprocess_timeout_secs = 60, subprocess_output_limit = 50_000 } = config.sandbox ?? {}
    const who = { tenant: '', keyId: options.agentId ?? '' }
    return this.#admission.run(async () => {
      const script = {
        ...run,
        workspace: resolve(cwd, options.workspace ?? '.'),
        variables: this.#variables(run),
        network: networkPolicyOf({ allowPrivate: allowPrivate(caller) }),
        limits: { timeoutMs: subprocess_timeout_secs * 1000, outputCharacters: subprocess_output_limit },
        agentId: options.agentId,
        signal: options.signal,
      }
      return { ...(await runScript(script, (spec) => open(spec, caller))), fuel: 0 }
    }, who)
  }

  async #record(result: SkillResult, ended: Ended, agentId: string | undefined): Promise<void> {
    const { skill, execId, fuel, durationMs } = result
    const who = { exec_id: execId, skill, ...(agentId && { agent_id: agentId }) }
    const { trail } = this.#parts
    const own = ended.violations.filter(({ recorded }) => recorded !== true)
    const outcome = 'ok' in result ? 'ok' : result.error.code
    const duration_ms = Math.round(durationMs)
    await Promise.all([
      ...own.map(({ violationType, details }) =>
        trail.append({ event: 'SandboxViolation', ...who, violation_type: violationType, details }),
      ),
      trail.append({ event: 'SkillRun', ...who, state: 'ended', outcome, fuel, duration_ms }),
    ])
    const violations = result.violations.length
    const agent = agentId ? { agent: agentId } : {}
    this.#usage.add({ skill, fuel, duration_ms: durationMs, violations, ok: outcome === 'ok', ...agent })
  }

  /** Records a skill that did not run; a refusal by the policy is recorded as a violation. */
  async #recordRefusal(
    { code, message, family }: SandboxError,
    who: { readonly exec_id: string; readonly skill: string; readonly agent_id?: string },
  ): Promise<void> {
    const { trail } = this.#parts
    await trail.append({ event: 'SkillRun', ...who, state: 'refused', outcome: code })
    if (family === 'denied')
      await trail.append({
        event: 'SandboxViolation',
        ...who,
        violation_type: 'CapabilityDenied',
        details: `${code}: ${message}`,
      })
  }
}

/** The limits of `[sandbox]`. */
export function wasmLimits({
  sandbox = {},
}: Config): Required<Omit<WasmSandboxOptions, 'runner' | 'cacheDirectory'>> {
  return {
    fuel: sandbox.wasm_fuel_limit ?? 10_000_000,
    epochDeadline: sandbox.wasm_epoch_deadline ?? 10,
    memoryMb: sandbox.wasm_memory_limit_mb ?? 64,
    stack: Math.min(sandbox.wasm_stack_limit ?? 1024, MAX_FRAMES),
  }
}
