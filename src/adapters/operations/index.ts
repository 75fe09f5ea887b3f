import { execOperations } from './exec.ts'
import { fileOperations } from './files.ts'
import { reachOperations } from './network.ts'
import type { Operation } from './operation.ts'
import { searchOperations } from './search.ts'

/** All operations that agents can use. */
export const OPERATIONS: readonly Operation[] = [
  ...execOperations,
  ...fileOperations,
  ...searchOperations,
  ...reachOperations,
]
