import { type Infer, object } from '../shape.ts'
import { arrayOf, nullable, pageOf, string, time } from './fields.ts'

/** API keys. */

const keyFields = {
  id: string(),
  name: string(),
  /** The first characters of the secret. */
  start: string(),
  scopes: arrayOf(string()),
  tenant: string(),
  created_at: time(),
  revoked_at: nullable(time()),
}
const keyShape = object(keyFields)
/** A key without its secret. */
export type KeyInfo = Infer<typeof keyShape>
/** All keys. */
export const keyPage = pageOf(keyShape)

/** A new key with its secret, which is in no other answer. */
export const createdKeyShape = object({ ...keyFields, key: string() })
/** A new key with its secret. */
export type CreatedKey = Infer<typeof createdKeyShape>
