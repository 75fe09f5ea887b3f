import type { SkillRun, SkillView } from '../model/api/skills.ts'
import type { Config } from '../model/config.ts'
import type { EventSink, Json } from '../model/event.ts'
import type { Requester } from '../model/requester.ts'
import type { Capability } from '../policy/grants/capability.ts'
import type { SkillViolation } from '../wasm/host/host-parts.ts'
import type { RunError, WasmSandboxOptions } from '../wasm/sandbox.ts'
import type { LogLine } from '../wasm/worker/guest-protocol.ts'
import type { Inspection } from './inspect.ts'
import type { ScriptSandbox } from './script.ts'

/** Options and results of a skill run. */

/** Dependencies provided by the composition root. */
export type SkillRunnerParts = {
  readonly config: Config
  readonly stateDir: string
  readonly cwd: string
  /** The host's environment; a variable is passed on only if the caller grants `EnvRead` for its name. */
  readonly env: Readonly<Record<string, string>>
  readonly trail: EventSink
  /** Opens a sandbox for a spec, through the gate. It reaches the private addresses that the caller may reach. */
  readonly open: (spec: unknown, caller: Requester) => Promise<ScriptSandbox>
  /** The private addresses that a caller may reach. */
  readonly allowPrivate: (caller: Requester) => readonly string[]
  readonly newId: (prefix: string) => string
  readonly wasm?: Pick<WasmSandboxOptions, 'runner'>
  /** Called by `close`. */
  readonly end?: () => Promise<void>
}

/** Options of one run. */
export type SkillRunOptions = {
  readonly input?: Json
  /** Added to the manifest's capabilities; flagged capabilities are granted only if they are listed here. */
  readonly grants?: readonly string[]
  /** The caller's own capabilities: a skill that requests more is refused. */
  readonly parent?: readonly string[]
  readonly agentId?: string | undefined
  /** Who runs the skill; default: the operator. */
  readonly caller?: Requester
  /** Throws if the caller is not allowed to give these capabilities to the skill. */
  readonly authorize?: (grants: readonly Capability[]) => void
  /** Accepts only the name of an inspected skill, never a directory. */
  readonly inspectedOnly?: boolean
  /** The directory for files that are read and written; default: the current directory. */
  readonly workspace?: string
  readonly signal?: AbortSignal
  /** Called before the skill runs, if there is something that the user should know. */
  readonly notice?: (text: string) => void
}

/** The result of a run and the resources it used. */
export type SkillResult = ({ readonly ok: Json } | { readonly error: RunError }) & {
  readonly skill: string
  readonly execId: string
  readonly hash: string
  readonly fuel: number
  readonly durationMs: number
  readonly violations: readonly SkillViolation[]
  readonly log: readonly LogLine[]
  /** The output exceeded the limit and was truncated. */
  readonly truncated: boolean
  /** Capabilities that the manifest requested and that were not granted. */
  readonly withheld: readonly string[]
}

/** One skill as `list` shows it. */
export type ListedSkill = {
  readonly name: string
  readonly dir: string
  readonly hash: string
  readonly version: string | undefined
  readonly runtime: string | undefined
  readonly state: 'unchanged' | 'changed' | 'missing'
}

/** A listed skill as JSON, without undefined fields. */
export function skillJson({
  version,
  runtime,
  inspection,
  ...listed
}: ListedSkill & { readonly inspection?: Inspection }): SkillView {
  return {
    ...listed,
    ...(version !== undefined && { version }),
    ...(runtime !== undefined && { runtime }),
    ...(inspection && { inspection: inspectionJson(inspection) }),
  }
}

const inspectionJson = ({
  version,
  description,
  ...known
}: Inspection): NonNullable<SkillView['inspection']> => ({
  ...known,
  ...(version !== undefined && { version }),
  ...(description !== undefined && { description }),
})

/** The JSON result of one run, for `ringfence skill run --json` and the API. */
export function resultJson(result: SkillResult): SkillRun {
  const { skill, execId, hash, fuel, durationMs, violations, log, truncated, withheld } = result
  return {
    ...('ok' in result ? { ok: result.ok } : { error: result.error }),
    fuel,
    duration_ms: Math.round(durationMs * 1000) / 1000,
    violations: violations.map(({ violationType, details }) => ({ violation_type: violationType, details })),
    skill,
    exec_id: execId,
    hash,
    truncated,
    withheld,
    log,
  }
}
