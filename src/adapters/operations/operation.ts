import { SandboxError } from '../../model/errors.ts'
import type { JsonSchema, Shape } from '../../model/shape.ts'
import { clip } from '../capture.ts'
import type { AgentSession } from '../session.ts'
import type { Approver } from '../tool-sandbox.ts'

/** The result of a tool call, as text for the model. */
export type Result = {
  readonly ok: boolean
  readonly text: string
  /** The same as structured data. */
  readonly data: Readonly<Record<string, unknown>>
  readonly image?: { readonly mime: ImageType; readonly base64: string }
}

/** The image formats that models accept. */
export type ImageType = 'image/png' | 'image/jpeg' | 'image/gif' | 'image/webp'

/** The context of a tool call. */
export type Call = {
  readonly signal?: AbortSignal | undefined
  /** Receives progress of a long-running call. */
  readonly progress?: ((text: string) => void) | undefined
  /** The user can be asked, so the call may throw a `Question`. */
  readonly canAsk?: boolean | undefined
  /** Who approved exactly this call; absent: nobody. */
  readonly approved?: Approver | undefined
}

/** What an operation changes, for clients that decide by it whether to ask. */
export const EFFECTS = {
  /** Changes nothing. */
  looks: { readOnlyHint: true, destructiveHint: false, idempotentHint: true, openWorldHint: false },
  /** Consumes what it returns, so a second call returns something else. */
  reads: { readOnlyHint: true, destructiveHint: false, idempotentHint: false, openWorldHint: false },
  /** Gives a file the content that the call contains. */
  writes: { readOnlyHint: false, destructiveHint: false, idempotentHint: true, openWorldHint: false },
  /** Changes files or processes, only of the sandbox and as the policy permits: destructive for nothing outside. */
  changes: { readOnlyHint: false, destructiveHint: false, idempotentHint: false, openWorldHint: false },
  /** Opens the sandbox to the network. */
  opens: { readOnlyHint: false, destructiveHint: false, idempotentHint: true, openWorldHint: true },
} as const
type Effect = keyof typeof EFFECTS

/** An operation; every adapter maps its tool names to these. */
export type Operation<A = unknown> = {
  readonly name: string
  readonly title: string
  readonly about: string
  readonly input: Shape<A>
  readonly output: JsonSchema
  readonly effect: Effect
  readonly run: (session: AgentSession, args: A, call: Call) => Promise<Result>
}

/** Defines an operation with typed arguments and erases the type for the table. */
export const operation = <A>(definition: Operation<A>): Operation => definition as unknown as Operation

/** Details that the user must see besides the command, by name. */
export type Particulars = readonly (readonly [name: string, text: string])[]

/** Thrown when the user must approve first and the caller can ask. */
export class Question extends Error {
  readonly what: string
  readonly why: string
  readonly particulars: Particulars

  constructor(what: string, why: string, particulars: Particulars = []) {
    super('approval needed')
    this.name = 'Question'
    this.what = what
    this.why = why
    this.particulars = particulars
  }
}

/** A successful result. */
export const done = (text: string, data: Result['data']): Result => ({ ok: true, text, data })

const HINTS: Readonly<Partial<Record<SandboxError['code'], string>>> = {
  'wrong-state': 'the sandbox has ended; open a new one with `sandbox_reset`',
  'sandbox-not-found': 'the sandbox has ended; open a new one with `sandbox_reset`',
  'approval-required': 'the user must approve it first; say what you need and why, or choose another way',
}

/** Converts an error to a result that the model can recover from. Unknown errors reveal no details. */
export function failure(error: unknown): Result {
  const known =
    error instanceof SandboxError ? error : new SandboxError('internal', 'the tool failed unexpectedly')
  const { code } = known
  const message = clip(known.message, 2000)
  // The approval was already rejected or expired, so the hint must not suggest asking again.
  const isAnswered = code === 'approval-required' && known.reasons.length > 0
  const hint = isAnswered
    ? 'choose another way, and do not try to bypass the policy'
    : code === 'forbidden-command'
      ? `${known.hint ?? 'the policy denies it; choose another way'}. Do not try to bypass the policy`
      : (HINTS[code] ?? known.hint)
  return {
    ok: false,
    text: `error: ${code}: ${message}${hint ? `\nhint: ${hint}` : ''}`,
    data: { error: { code, message, ...(hint && { hint }) } },
  }
}

/** Runs one operation of a table. Throws nothing except a `Question`. */
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

/** The error for a tool name that does not exist; lists the names that do. */
export const unknownTool = (table: readonly { readonly name: string }[], name: unknown): SandboxError =>
  new SandboxError('invalid-input', `no tool named \`${String(name).slice(0, 64)}\``, {
    hint: `one of: ${table.map((one) => one.name).join(', ')}`,
  })

/** Adds a description for the model to a shape. */
export const told = <S extends Shape<unknown>>(shape: S, description: string): S => ({
  ...shape,
  schema: { ...shape.schema, description },
})
