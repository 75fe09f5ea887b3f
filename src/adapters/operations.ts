import { execOperations } from './exec-operations.ts'
import { fileOperations } from './file-operations.ts'
import type { Operation } from './operation.ts'
import { reachOperations } from './reach-operations.ts'
import { searchOperations } from './search-operations.ts'

/** Everything an agent can do, once. */
export const OPERATIONS: readonly Operation[] = [
  ...execOperations,
  ...fileOperations,
  ...searchOperations,
  ...reachOperations,
]
