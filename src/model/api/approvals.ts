import { HOST_SCOPES } from '../host-question.ts'
import { type Infer, number, object, oneOf } from '../shape.ts'
import { decisionShape } from './execs.ts'
import { nullable, pageOf, string, time } from './fields.ts'

/** Approvals: commands that wait for a person. */

/** One approval. */
export const approvalShape = object({
  id: string(),
  command: string(),
  cwd: string(),
  decision: decisionShape,
  sandbox_id: string(),
  /** The command that waits; other records name it by the same id. */
  exec_id: nullable(string()),
  agent_id: nullable(string()),
  asked_at: time(),
  expires_at: time(),
  state: oneOf('pending', 'approved', 'rejected', 'expired'),
  answered_by: nullable(string()),
  answered_at: nullable(time()),
  reason: nullable(string()),
  /** The host that a connection waits for; `null` for a command. `entry` is how a list names it. */
  host: nullable(
    object({
      host: string(),
      port: number({ integer: true }),
      protocol: string(),
      entry: string(),
      /** Whose policy an answer "always" changes; `null`: that of sandboxes of the operator. */
      tenant: nullable(string()),
    }),
  ),
  /** How far a yes about a host reaches. */
  scope: nullable(oneOf(...HOST_SCOPES)),
})
/** One approval. */
export type Approval = Infer<typeof approvalShape>
/** A page of approvals. */
export const approvalPage = pageOf(approvalShape)
