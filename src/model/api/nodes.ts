import { boolean, type Infer, number, object, oneOf, record, text } from '../shape.ts'
import { arrayOf, nullable, pageOf, string, time } from './fields.ts'

/** The nodes of a cluster. */

const amounts = object({ cpus: number(), memory_mb: number(), disk_mb: number(), sandboxes: number() })

/** One server of a cluster. */
export const nodeShape = object({
  id: string(),
  name: string(),
  role: oneOf('all', 'api', 'node'),
  /** `lost`: its lease ended and another node took over; `left`: it went on its own. */
  state: oneOf('up', 'lost', 'left'),
  /** Whether it takes new sandboxes. */
  schedule: oneOf('open', 'cordoned', 'draining'),
  epoch: number({ integer: true }),
  version: string(),
  url: string(),
  labels: record(text({ empty: true })),
  backends: arrayOf(string()),
  capacity: amounts,
  used: amounts,
  /** Whether it rests after several creates failed in a row. */
  failing: boolean(),
  /** How long its lease still holds. */
  lease_left_ms: nullable(number()),
  joined_at: time(),
  /** How many volumes are on it. */
  volumes: number({ integer: true }),
  /** While it drains: the sandboxes and volumes that do not move, and why. */
  staying: arrayOf(object({ id: string(), why: string() })),
  /** Whether it is the node that answers. */
  self: boolean(),
})
/** One server of a cluster. */
export type NodeInfo = Infer<typeof nodeShape>
/** All nodes; `next` is always null. */
export const nodePage = pageOf(nodeShape)
