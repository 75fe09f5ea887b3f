import { SandboxError } from '../../model/errors.ts'
import type { JsonSchema, Shape } from '../../model/shape.ts'
import { clip } from '../capture.ts'
import type { AgentSession } from '../session.ts'

/** What a tool call ends in: always something that a model can read. */
export type Result = {
  readonly ok: boolean
  readonly text: string
  /** The same for programs. */
  readonly data: Readonly<Record<string, unknown>>
  readonly image?: { readonly mime: string; readonly base64: string }
}

/** What the caller of a tool brings along. */
export type Call = {
  readonly signal?: AbortSignal | undefined
  /** Hears that something long goes on. */
  readonly progress?: ((text: string) => void) | undefined
  /** There is a person who can be asked: a `Question` may come out. */
  readonly canAsk?: boolean | undefined
  /** That person said yes to this very call. */
  readonly approved?: boolean | undefined
}

/** One canonical operation; every adapter is a table of names onto these. */
export type Operation<A = unknown> = {
  readonly name: string
  readonly title: string
  readonly about: string
  readonly input: Shape<A>
  readonly output: JsonSchema
  readonly readOnly?: boolean
  readonly run: (session: AgentSession, args: A, call: Call) => Promise<Result>
}

/** Keeps the argument's type until `run`, and forgets it for the table. */
export const operation = <A>(definition: Operation<A>): Operation => definition as unknown as Operation

/** What a person has to know beside the command itself, by its name. */
export type Particulars = readonly (readonly [name: string, text: string])[]

/** Thrown when a person must be asked first and the caller knows how. */
export class Question extends Error {
  readonly what: string
  readonly why: string
  readonly particulars: Particulars

  constructor(what: string, why: string, particulars: Particulars = []) {
    super('a person must be asked')
    this.name = 'Question'
    this.what = what
    this.why = why
    this.particulars = particulars
  }
}

export const done = (text: string, data: Result['data']): Result => ({ ok: true, text, data })

const HINTS: Readonly<Partial<Record<SandboxError['code'], string>>> = {
  'wrong-state': 'the sandbox has ended; get a fresh one with `sandbox_reset`',
  'sandbox-not-found': 'the sandbox has ended; get a fresh one with `sandbox_reset`',
  'forbidden-command': 'policy forbids it; choose another way and do not try to get around it',
  'approval-required': 'a person must approve it first; say what you need and why, or choose another way',
  'path-traversal': 'only paths that the sandbox can see, best relative to the workspace',
}

/** Whatever went wrong, as a result to recover from. Unknown errors leak nothing. */
export function failure(error: unknown): Result {
  const known =
    error instanceof SandboxError ? error : new SandboxError('internal', 'the tool failed unexpectedly')
  const { code } = known
  const message = clip(known.message, 2000)
  // Somebody was asked and did not say yes: to ask again is not the way.
  const isAnswered = code === 'approval-required' && known.reasons.length > 0
  const hint = isAnswered
    ? 'choose another way, and do not try to get around it'
    : (HINTS[code] ?? known.hint)
  return {
    ok: false,
    text: `error: ${code}: ${message}${hint ? `\nhint: ${hint}` : ''}`,
    data: { error: { code, message, ...(hint && { hint }) } },
  }
}

/** Runs one operation of a table. Never throws, but for a question to a person. */
export async function perform(
  table: readonly Operation[],
  session: AgentSession,
  name: string,
  args: unknown,
  call: Call = {},
): Promise<Result> {
  try {
    const found = table.find((one) => one.name === name)
    if (!found) throw unknownTool(table, name)
    return await found.run(session, found.input.parse(args ?? {}, ''), call)
  } catch (error) {
    if (error instanceof Question && call.canAsk) throw error
    return failure(error)
  }
}

export const unknownTool = (table: readonly { readonly name: string }[], name: unknown): SandboxError =>
  new SandboxError('invalid-input', `there is no tool \`${String(name).slice(0, 64)}\``, {
    hint: `one of: ${table.map((one) => one.name).join(', ')}`,
  })

/** A shape with a sentence for the model. */
export const told = <S extends Shape<unknown>>(shape: S, description: string): S => ({
  ...shape,
  schema: { ...shape.schema, description },
})
