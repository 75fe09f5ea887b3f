import { SandboxError } from '../model/errors.ts'
import { plainCopy, plainResult } from './copy.ts'
import { EvalPool } from './engine.ts'
import type { EvalEnd, EvalJob } from './protocol.ts'

/** The limits and variables of an evaluation. */
export type EvalOptions = {
  /** Global variables for the code; copied as JSON, own data properties only. */
  readonly context?: Readonly<Record<string, unknown>>
  readonly timeoutMs?: number
  readonly memoryMb?: number
  /** Maximum size of the result as JSON text. */
  readonly outputBytes?: number
}

/** The code threw or does not parse. The message comes from the guest: one line, bounded, untrusted. */
export class EvalThrew extends Error {
  constructor(message: string) {
    super(message)
    this.name = 'EvalThrew'
  }
}

const pool = new EvalPool()
const TIMEOUT_MS = 5000
const CONDITION_MS = 2000
const TEMPLATE_MS = 1000
const MEMORY_MB = 64
const OUTPUT_BYTES = 2 ** 20
const MESSAGE_CHARS = 500

/** Starts the engine ahead of time (about 60 ms, once). Otherwise the first evaluation starts it. */
export const loadEngine = (): Promise<void> => pool.warm()

/**
 * Evaluates code in its own VM and returns a copy of the value, or `undefined` when the value has no JSON form.
 * Blocks the caller until the evaluation ends or its deadline passes; promises are not awaited.
 */
export function safeEval(code: string, options: EvalOptions = {}): unknown {
  return answerOf(pool.runSync(jobOf(code, options, {})), options)
}

/**
 * The non-blocking variant, for code with top-level `await`, or with `return` as the body of an async function.
 * The deadline also covers pending jobs that the code leaves behind.
 */
export async function safeEvalAsync(code: string, options: EvalOptions = {}): Promise<unknown> {
  return answerOf(await pool.run(jobOf(code, options, { awaits: true })), options)
}

/** Whether the code's value is truthy; false when the evaluation fails for any reason. */
export function safeEvalCondition(code: string, options: EvalOptions = {}): boolean {
  try {
    const end = pool.runSync(jobOf(code, { timeoutMs: CONDITION_MS, ...options }, { as: 'truth' }))
    return end.kind === 'value' && end.text === 'true'
  } catch {
    return false
  }
}

/** Replaces every `{{expression}}` with its value, within 1000 ms in total; a failing expression is left unchanged. */
export function safeInterpolate(template: string, context: Readonly<Record<string, unknown>>): string {
  const deadline = performance.now() + TEMPLATE_MS
  const job = jobOf('', { context }, { as: 'text' })
  const filled = (expression: string, whole: string): string => {
    const timeoutMs = deadline - performance.now()
    if (timeoutMs <= 0) return whole
    // The parentheses allow only an expression; the line break ends a trailing comment.
    const end = pool.runSync({ ...job, given: givenOf(context), code: `(${expression}\n)`, timeoutMs })
    return end.kind === 'value' && end.text !== undefined ? end.text : whole
  }
  return filledIn(template, filled)
}

/** Replaces each `{{…}}` in one pass: a regular expression would search for the end again from every start. */
function filledIn(template: string, filled: (expression: string, whole: string) => string): string {
  const parts: string[] = []
  let at = 0
  for (;;) {
    const start = template.indexOf('{{', at)
    const end = start < 0 ? -1 : template.indexOf('}}', start + 2)
    if (end < 0) break
    parts.push(
      template.slice(at, start),
      filled(template.slice(start + 2, end), template.slice(start, end + 2)),
    )
    at = end + 2
  }
  return parts.join('') + template.slice(at)
}

function jobOf(code: string, options: EvalOptions, form: Partial<Pick<EvalJob, 'awaits' | 'as'>>): EvalJob {
  const { context = {}, timeoutMs = TIMEOUT_MS, memoryMb = MEMORY_MB, outputBytes = OUTPUT_BYTES } = options
  if (typeof code !== 'string') throw new SandboxError('invalid-input', 'the code must be a string')
  within('timeoutMs', timeoutMs, 1, 600_000)
  within('memoryMb', memoryMb, 1, 1024)
  within('outputBytes', outputBytes, 1, 2 ** 28)
  const limits = { timeoutMs, memoryBytes: Math.floor(memoryMb * 2 ** 20), outputBytes }
  return { code, given: givenOf(context), awaits: false, as: 'json', ...form, ...limits }
}

function within(name: string, value: unknown, least: number, most: number): void {
  if (typeof value !== 'number' || !(value >= least && value <= most))
    throw new SandboxError('invalid-input', `${name} takes a number from ${least} to ${most}`)
}

/** The context as JSON text, with a new seed for `Math.random`. */
function givenOf(context: Readonly<Record<string, unknown>>): string {
  const copied = plainCopy(context)
  if (typeof copied !== 'object' || copied === null || Array.isArray(copied))
    throw new SandboxError('invalid-input', 'the context must be an object')
  return JSON.stringify({ seed: [...crypto.getRandomValues(new Int32Array(4))], context: copied })
}

function answerOf(
  end: EvalEnd,
  { timeoutMs = TIMEOUT_MS, memoryMb = MEMORY_MB, outputBytes }: EvalOptions,
): unknown {
  switch (end.kind) {
    case 'value':
      return end.text === undefined ? undefined : plainResult(end.text)
    case 'threw':
      throw new EvalThrew(oneLine(end.message))
    case 'timeout':
      throw new SandboxError('timeout', `the code ran longer than ${timeoutMs} ms`)
    case 'exhausted':
      throw new SandboxError('resource-exhausted', EXHAUSTED[end.what](memoryMb, outputBytes ?? OUTPUT_BYTES))
    case 'broken':
      throw new SandboxError('internal', `the engine failed: ${oneLine(end.reason)}`)
    default:
      return end satisfies never
  }
}

const EXHAUSTED = {
  memory: (memoryMb: number) => `the code needs more than ${memoryMb} MB of memory`,
  stack: () => 'the code calls itself too deeply',
  output: (_: number, outputBytes: number) => `the value is larger than ${outputBytes} bytes`,
} as const

const oneLine = (text: string): string =>
  text.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]+/g, ' ').slice(0, MESSAGE_CHARS)
