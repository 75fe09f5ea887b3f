import type { Freezable } from '../backends/backend.ts'
import type { Sandbox } from './sandbox.ts'

/** An open sandbox in the supervisor's hands; what a backend may lack is answered with `unsupported`. */
export type OpenSandbox = Sandbox & Partial<Freezable>
