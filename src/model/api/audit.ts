import { EVENT_NAMES, type EventName, type Json } from '../event.ts'
import { type Infer, number, object, type Shape } from '../shape.ts'
import { streamEndShape } from './execs.ts'
import { arrayOf, json, literal, nullable, pageOf, string, time, variants } from './fields.ts'

/** The audit log. */

const integer = () => number({ integer: true })

const chainFields = object({
  seq: integer(),
  time: time(),
  event: string(),
  prev_hash: string(),
  hash: string(),
})

/** A record of the audit log: its position in the hash chain, and the fields of its event. */
export type TrailRecord = Infer<typeof chainFields> & { readonly [field: string]: Json }

/** A record of the audit log. Its other fields differ from event to event. */
export const recordShape: Shape<TrailRecord> = {
  schema: { ...chainFields.schema, additionalProperties: true },
  parse(value, at) {
    const { seq, time, event, prev_hash, hash, ...rest } = value as Partial<TrailRecord>
    return { ...rest, ...chainFields.parse({ seq, time, event, prev_hash, hash }, at) } as TrailRecord
  },
}
/** A page of records. */
export const recordPage = pageOf(recordShape)

/** A record as `/api/audit` lists it. */
export const bareRecordsShape = arrayOf(
  object({
    timestamp: time(),
    agent_id: nullable(json()),
    event: string(),
    violation_type: nullable(json()),
    details: nullable(json()),
    sandbox_id: nullable(json()),
    hash: string(),
    prev_hash: string(),
  }),
)

/** The signed head of the audit log. */
const headShape = object({
  count: integer(),
  hash: string(),
  key: string(),
  offset: integer(),
  root: string(),
  segment: integer(),
  seq: integer(),
  signature: string(),
  time: string(),
})
/** The signed head of the audit log. */
export type TrailHead = Infer<typeof headShape>

/** The signed head with the public key that signed it. */
export const signedHeadShape = object({ head: headShape, public_key: string() })
/** The signed head with the public key that signed it. */
export type SignedHead = Infer<typeof signedHeadShape>

/** The Merkle proof of one record. */
export const proofShape = object({
  record: recordShape,
  path: arrayOf(string()),
  head: headShape,
  public_key: string(),
})
/** The Merkle proof of one record. */
export type TrailProof = Infer<typeof proofShape>

/** The result of a verification; `seq` is the first record that is wrong or missing. */
export const verificationShape = variants(
  object({ ok: literal(true), records: integer(), checkpoints: integer() }),
  object({ ok: literal(false), seq: integer(), problem: string() }),
)
/** The result of a verification. */
export type Verification = Infer<typeof verificationShape>

/** The events of `/v1/events`: each record under the name of its `event`; `cut` says why the stream ends. */
export const auditEvents = {
  ...(Object.fromEntries(EVENT_NAMES.map((name) => [name, recordShape])) as Record<
    EventName,
    typeof recordShape
  >),
  cut: streamEndShape,
}
