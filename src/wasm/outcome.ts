import type { ErrorCode, SandboxError } from '../model/errors.ts'
import type { Json } from '../model/event.ts'
import type { SkillViolation, ViolationType } from './host/host-parts.ts'
import type { GuestEnd, LogLine } from './worker/guest-protocol.ts'
import type { RunEnd } from './worker/guest-worker.ts'

/** Converts the end of a run into the result for the caller. */

/** Public error codes, and the codes that only a guest can cause. */
export type RunErrorCode =
  | 'resource-exhausted'
  | 'timeout'
  | 'trap'
  | 'abi-error'
  | 'invalid-module'
  | 'guest-error'
  | Extract<ErrorCode, 'unsupported' | 'internal' | 'capability-denied' | 'path-traversal' | 'ssrf-blocked'>

/** Why a run returned no value. */
export type RunError = {
  readonly code: RunErrorCode
  readonly message: string
  /** For `resource-exhausted`: the resource. */
  readonly resource?: 'fuel' | 'stack' | 'memory' | 'output' | 'pids' | 'disk' | 'cpu'
}

type Outcome = { readonly ok: Json } | { readonly error: RunError }
type RunConditions = {
  readonly fuel: number
  readonly durationMs: number
  readonly violations: readonly SkillViolation[]
}
type Result = Outcome & RunConditions & { readonly log: readonly LogLine[] }

const failed = (code: RunErrorCode, message: string): Outcome => ({ error: { code, message } })

const exhausted = (resource: 'fuel' | 'stack' | 'memory'): Outcome => ({
  error: { code: 'resource-exhausted', message: `the run used up its ${resource}`, resource },
})

/** A budget of 0 is no budget, and not “unlimited”. */
const noFuel: Outcome = {
  error: {
    code: 'resource-exhausted',
    message: 'WebAssembly is disabled: the fuel limit is 0 (`wasm_fuel_limit` in ringfence.toml, or --fuel)',
    resource: 'fuel',
  },
}

/** The result of a run that ended, or of a module that could not be run. */
export function resultOf(end: RunEnd | SandboxError, around: RunConditions): Result {
  if (end instanceof Error) return { ...refused(end), ...around, fuel: 0, log: [] }
  switch (end.kind) {
    case 'report': {
      const { report } = end
      const outcome =
        around.fuel === 0 && report.end.kind === 'exhausted'
          ? noFuel
          : outcomeOf(report.end, around.violations)
      return withLimit(outcome, { ...around, fuel: report.fuel }, report.log)
    }
    case 'timeout':
      return withLimit(failed('timeout', 'the run did not end before its deadline'), around, [])
    case 'died':
      return withLimit(
        end.reason === 'memory' ? exhausted('memory') : failed('internal', 'the run was lost'),
        around,
        [],
      )
    default:
      return end satisfies never
  }
}

const LIMIT_VIOLATIONS: Readonly<Record<string, ViolationType>> = {
  'resource-exhausted': 'ResourceExhausted',
  timeout: 'Timeout',
}

/** A limit that stopped a run is also reported as a violation. */
function withLimit(outcome: Outcome, around: RunConditions, log: readonly LogLine[]): Result {
  const violationType = 'error' in outcome ? LIMIT_VIOLATIONS[outcome.error.code] : undefined
  if (violationType === undefined || !('error' in outcome)) return { ...outcome, ...around, log }
  const details = outcome.error.resource ?? 'wall clock'
  return { ...outcome, ...around, violations: [...around.violations, { violationType, details }], log }
}

/** The error for a module that was refused before it ran. */
function refused({ code, message }: SandboxError): Outcome {
  switch (code) {
    case 'resource-limit-exceeded':
      return { error: { code: 'resource-exhausted', message } }
    case 'unsupported':
      return failed('unsupported', message)
    case 'invalid-input':
      return failed(/^not a valid/.test(message) ? 'invalid-module' : 'abi-error', message)
    default:
      return failed('internal', message)
  }
}

function outcomeOf(end: GuestEnd, violations: readonly SkillViolation[]): Outcome {
  switch (end.kind) {
    case 'text':
      return returned(end.text, violations)
    case 'values':
      return { ok: end.values.length > 1 ? end.values.map(jsonNumber) : jsonNumber(end.values[0]) }
    case 'exit':
      return end.code === 0
        ? { ok: looseJson(end.text) }
        : failed('guest-error', oneLine(end.said || `the program exited with code ${end.code}`))
    case 'refused':
      return failed(refusalCode(end.code, violations) ?? 'guest-error', oneLine(end.message))
    case 'exhausted':
      return exhausted(end.what)
    case 'timeout':
      return failed('timeout', 'the run did not end before its deadline')
    case 'trap':
      return failed('trap', end.message.slice(0, 200))
    case 'abi':
      return failed('abi-error', end.message)
    default:
      return end satisfies never
  }
}

/** JSON has no 64-bit integers and no infinities: they are returned as text. */
function jsonNumber(value: number | bigint | undefined): Json {
  if (value === undefined) return null
  const plain = Number(value)
  if (typeof value === 'bigint') return Number.isSafeInteger(plain) ? plain : String(value)
  return Number.isFinite(plain) ? plain : String(plain)
}

/** The value of a program's output: parsed if it is JSON, else the text. */
export function looseJson(text: string): Json {
  const value = text.trim() === '' ? null : parseJson(text)
  // The trailing newline is not part of the value.
  return value === undefined ? text.replace(/\r?\n$/, '') : value
}

// Values are traversed recursively, here and in callers.
const MAX_NESTING = 256

/** A JSON value of bounded depth, or `undefined`. */
function parseJson(text: string): Json | undefined {
  let depth = 0
  let inText = false
  for (let index = 0; index < text.length; index++) {
    const unit = text.charCodeAt(index)
    if (inText && unit === 0x5c) index++
    else if (unit === 0x22) inText = !inText
    else if (!inText && (unit === 0x5b || unit === 0x7b) && ++depth > MAX_NESTING) return undefined
    else if (!inText && (unit === 0x5d || unit === 0x7d)) depth--
  }
  try {
    return JSON.parse(text) as Json
  } catch {
    return undefined
  }
}

function returned(text: string, violations: readonly SkillViolation[]): Outcome {
  const value = parseJson(text)
  if (value === undefined) return failed('abi-error', 'the result is not JSON')
  return returnedError(value, violations) ?? { ok: value }
}

/** Guest messages are reduced to one line. */
export const oneLine = (text: string): string =>
  text.slice(0, 2000).replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]+/g, ' ')

/** The error code of a run that failed because of a violation. */
export const CODE_OF: Readonly<Partial<Record<ViolationType, RunErrorCode>>> = {
  CapabilityDenied: 'capability-denied',
  PathTraversal: 'path-traversal',
  SsrfBlocked: 'ssrf-blocked',
}

/**
 * A result with `error` as its only content is a failure reported by the guest. SECURITY: its code may be a refusal code
 * only if the host really refused something, so that a guest cannot forge a violation or a limit.
 */
function returnedError(value: Json, violations: readonly SkillViolation[]): Outcome | undefined {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return undefined
  const { error, code, ...rest } = value as { readonly [key: string]: Json }
  if (error === undefined || Object.keys(rest).length > 0) return undefined
  const message = oneLine(typeof error === 'string' ? error : JSON.stringify(error))
  return failed(refusalCode(code, violations) ?? 'guest-error', message)
}

const refusalCode = (
  code: Json | undefined,
  violations: readonly SkillViolation[],
): RunErrorCode | undefined =>
  violations.map(({ violationType }) => CODE_OF[violationType]).find((real) => real === code)
