import type { Freezable } from '../backends/backend.ts'
import type { Sandbox } from './sandbox.ts'

/** An open sandbox that the supervisor manages; operations that its backend lacks fail with `unsupported`. */
export type OpenSandbox = Sandbox & Partial<Freezable>
