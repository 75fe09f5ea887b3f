import { ERRORS, type ErrorCode } from '../errors.ts'
import { type Infer, object, oneOf, optional } from '../shape.ts'
import { arrayOf, string } from './fields.ts'

/** The answer to every request that is refused or fails. */
export const problemShape = object({
  code: oneOf(...(Object.keys(ERRORS) as ErrorCode[])),
  message: string(),
  hint: optional(string()),
  reasons: optional(arrayOf(string())),
  request_id: string(),
})
/** The answer to every request that is refused or fails. */
export type Problem = Infer<typeof problemShape>
