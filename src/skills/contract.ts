import type { SkillRun, SkillView } from '../model/api/skills.ts'
import type { Config } from '../model/config.ts'
import type { EventSink, Json } from '../model/event.ts'
import type { Capability } from '../policy/grants/capability.ts'
import type { SkillViolation } from '../wasm/host/host-parts.ts'
import type { RunError, WasmSandboxOptions } from '../wasm/sandbox.ts'
import type { LogLine } from '../wasm/worker/guest-protocol.ts'
import type { Inspection } from './inspect.ts'
import type { OpenSandbox } from './script.ts'

/** What goes into a run of a skill and what comes out. */

/** What the composition root gives. */
export type SkillRunnerParts = {
  readonly config: Config
  readonly stateDir: string
  readonly cwd: string
  /** The host's own variables; one of them is passed on only where the caller grants `EnvRead` of its name. */
  readonly env: Readonly<Record<string, string>>
  readonly trail: EventSink
  readonly open: OpenSandbox
  readonly newId: (prefix: string) => string
  readonly wasm?: Pick<WasmSandboxOptions, 'runner'>
  /** Called by `close`. */
  readonly end?: () => Promise<void>
}

/** What a caller says about one run. */
export type SkillRunOptions = {
  readonly input?: Json
  /** Added to what the manifest asks for; red flags are granted here or not at all. */
  readonly grants?: readonly string[]
  /** What the caller holds itself: a skill that asks for more is refused. */
  readonly parent?: readonly string[]
  readonly agentId?: string | undefined
  /** Throws when whoever asks may not have what the skill is granted of the host. */
  readonly authorize?: (grants: readonly Capability[]) => void
  /** Only a skill that was inspected here, by its name; never a directory. */
  readonly inspectedOnly?: boolean
  /** The directory that files are read and written in; the current one unless told. */
  readonly workspace?: string
  readonly signal?: AbortSignal
}

/** How a run ended and what it used. */
export type SkillResult = ({ readonly ok: Json } | { readonly error: RunError }) & {
  readonly skill: string
  readonly execId: string
  readonly hash: string
  readonly fuel: number
  readonly durationMs: number
  readonly violations: readonly SkillViolation[]
  readonly log: readonly LogLine[]
  /** The output was longer than the limit and was cut. */
  readonly truncated: boolean
  /** What the manifest asked for and did not get. */
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

/** A listed skill as an answer: without the fields that are undefined. */
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

/** The JSON of one run: of `ringfence skill run --json` and of the API. */
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
