import { type Infer, number, object, oneOf, optional } from '../shape.ts'
import { streamEndShape } from './execs.ts'
import { pageOf, string, time } from './fields.ts'

/** Files in a sandbox. */

const integer = () => number({ integer: true })

/** A file, a directory or a link. */
export const fileShape = object({
  name: string(),
  path: string(),
  kind: oneOf('file', 'dir', 'link', 'other'),
  size: integer(),
  mode: integer(),
  uid: integer(),
  gid: integer(),
  modified_at: time(),
  /** The target of a link. */
  target: optional(string()),
})
/** A file, a directory or a link. */
export type FileInfo = Infer<typeof fileShape>
/** The entries of a directory. */
export const filePage = pageOf(fileShape)

const changeShape = object({ kind: string(), name: string() })
/** One change below a watched directory. */
export type FileChange = Infer<typeof changeShape>

/** The events of a watch. */
export const watchEvents = {
  /** The watch is in place. */
  ready: object({ path: string() }),
  change: changeShape,
  /** The last event, when the server ends the stream. */
  cut: streamEndShape,
}
