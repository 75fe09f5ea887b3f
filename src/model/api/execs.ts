import { type Outcome, STOP_LIMITS, type Violation } from '../command.ts'
import { ACTIONS, type CommandJudgement, type ContainedRule, type Decision } from '../decision.ts'
import { GUARANTEE_NAMES, LEVELS } from '../guarantee.ts'
import { type Containment, RISK_NAMES } from '../risk.ts'
import { boolean, type Infer, number, object, oneOf, optional, record, type Shape } from '../shape.ts'
import { STREAM_END_REASONS, type StreamEnd } from '../stream-end.ts'
import { arrayOf, literal, nullable, pageOf, string, time, variants } from './fields.ts'
import { problemShape } from './problem.ts'

/** Commands in a sandbox. */

const integer = () => number({ integer: true })

/** How a command ended. */
const outcomeShape: Shape<Outcome> = variants(
  object({ kind: literal('exited'), code: integer() }),
  object({ kind: literal('signaled'), signal: string() }),
  object({ kind: literal('stopped'), limit: oneOf(...STOP_LIMITS) }),
)

const violationShape: Shape<Violation> = object({ guarantee: string(), details: string() })

/** The judgement of one simple command. */
export const judgementFields = {
  argv: arrayOf(string()),
  action: oneOf(...ACTIONS),
  reason: string(),
  rule: optional(string()),
  depth: optional(integer()),
}
const judgementShape: Shape<CommandJudgement> = object(judgementFields)

const containedShape: Shape<ContainedRule> = object({
  rule: string(),
  action: oneOf('ask', 'deny'),
  /** Each risk of the rule with the guarantee that contains it. */
  by: record(oneOf(...GUARANTEE_NAMES), new RegExp(`^(${RISK_NAMES.join('|')})$`)) as Shape<Containment>,
})

const decided = {
  action: oneOf(...ACTIONS),
  reason: string(),
  rules: arrayOf(string()),
  /** The questions and denials of built-in rules that the sandbox answered. */
  contained: optional(arrayOf(containedShape)),
}

/** A decision of the policy about a command. */
export const decisionShape: Shape<Decision> = object({ ...decided, commands: arrayOf(judgementShape) })

/** Why the server ended a stream, or stopped a command. */
export const streamEndShape: Shape<StreamEnd> = object({
  reason: oneOf(...STREAM_END_REASONS),
  message: string(),
})

const resultFields = {
  sandbox_id: string(),
  exec_id: string(),
  state: oneOf('running', 'ended', 'failed'),
  /** `null` for an ended sandbox that was never opened. */
  backend: nullable(string()),
  level: nullable(oneOf(...LEVELS)),
  /** The isolation layers as the kernel reports them. */
  layers: arrayOf(string()),
  /** `null` while the command runs. */
  outcome: nullable(outcomeShape),
  truncated: boolean(),
  /** `null` where the audit log does not say it. */
  duration_ms: nullable(number()),
  violations: arrayOf(violationShape),
  /** What would let a command pass whose risks the sandbox contained, such as the host to allow. */
  hint: optional(string()),
  /** Read from the audit log, a decision has no `commands`. */
  decision: nullable(object({ ...decided, commands: optional(arrayOf(judgementShape)) })),
  /** Why the command was stopped, when its sandbox ended while it ran. */
  cut: optional(streamEndShape),
}

/** One command with its output. */
export const execShape = object({ ...resultFields, stdout: string(), stderr: string() })
/** One command with its output. */
export type ExecResult = Infer<typeof execShape>

/** The event `end` of a command's stream: the result without the output, which was streamed. */
const execEndShape = object(resultFields)
/** The result of a streamed command. */
export type ExecEnd = Infer<typeof execEndShape>

/** A row in the list of a sandbox's commands. */
const execViewShape = object({
  exec_id: string(),
  command: string(),
  terminal: boolean(),
  /** Whether the output can still be read. */
  held: boolean(),
  state: oneOf('running', 'ended', 'failed', 'refused', 'unfinished'),
  started_at: time(),
  outcome: nullable(outcomeShape),
  duration_ms: nullable(number()),
  violations: integer(),
  action: string(),
  reason: string(),
})
/** A row in the list of a sandbox's commands. */
export type ExecView = Infer<typeof execViewShape>
/** The commands of a sandbox. */
export const execPage = pageOf(execViewShape)

/** The number of bytes that were written to a command. */
export const writtenShape = object({ written: integer() })
/** The signal that was sent. */
export const signalSentShape = object({ sent: string() })
/** The size of a command's terminal. */
export const resizedShape = object({ cols: integer(), rows: integer() })

/** The events of a command's stream. */
export const execEvents = {
  start: object({ exec_id: string(), sandbox_id: string(), pid: integer() }),
  /** Output as base64. */
  stdout: string({ contentEncoding: 'base64' }),
  stderr: string({ contentEncoding: 'base64' }),
  /** The command waits for a person. */
  approval: object({ id: string() }),
  /** Output up to this event was dropped because it was not read in time. */
  gap: object({ up_to: integer() }),
  end: execEndShape,
  error: problemShape,
  /** The last event, when the server ends the stream. */
  cut: streamEndShape,
}
