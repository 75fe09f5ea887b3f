import { boolean, type Infer, number, object, oneOf, optional } from '../shape.ts'
import { arrayOf, described, literal, nullable, pageFields, string } from './fields.ts'
import { sandboxFields } from './sandboxes.ts'

/** The changes of reviewed sandboxes. */

const integer = () => number({ integer: true })

const changeFields = {
  path: string(),
  change: oneOf('added', 'changed', 'deleted', 'mode'),
  kind: oneOf('file', 'dir', 'link', 'other'),
  mode: integer(),
  size: integer(),
  binary: boolean(),
  /** The target of a link. */
  target: optional(string()),
  version: described('identifies exactly this change; `apply` takes it', string()),
}
const changeShape = object(changeFields)
/** One change of a reviewed sandbox, by the path inside the sandbox. */
export type Change = Infer<typeof changeShape>

/** The changes of one sandbox; `items` holds the first of `total`. */
export const changesShape = object({
  open: described('the sandbox still runs, so more changes may follow', boolean()),
  total: integer(),
  items: arrayOf(changeShape),
  next: literal(null),
})
/** The changes of one sandbox. */
export type Changes = Infer<typeof changesShape>

/** One change with its text; `null` where the file is no text, or too long. */
export const changeDiffShape = object({
  ...changeFields,
  before: nullable(string()),
  after: nullable(string()),
})
/** One change with its text before and after. */
export type ChangeDiff = Infer<typeof changeDiffShape>

/** What `apply` did. */
export const appliedShape = object({
  applied: integer(),
  refused: arrayOf(object({ path: string(), why: string() })),
  /** Changes that are still not applied. */
  waiting: integer(),
})
/** What `apply` did. */
export type Applied = Infer<typeof appliedShape>

/** An ended sandbox with changes that are not applied. */
export const waitingReviewShape = object({
  ...sandboxFields,
  changes: described(
    'number of changes; null if the sandbox ended too abruptly to count them',
    nullable(integer()),
  ),
})
/** An ended sandbox with changes that are not applied. */
export type WaitingReview = Infer<typeof waitingReviewShape>
/** The first ended sandboxes with changes that are not applied. */
export const reviewPage = object({ ...pageFields(waitingReviewShape), total: integer() })
/** The first ended sandboxes with changes that are not applied. */
export type ReviewPage = Infer<typeof reviewPage>
