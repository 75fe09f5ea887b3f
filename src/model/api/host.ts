import { LEVELS } from '../guarantee.ts'
import { boolean, type Infer, number, object, oneOf, optional } from '../shape.ts'
import { arrayOf, literal, nullable, string } from './fields.ts'

/** The server's host: backends, diagnosis, readiness. */

const backendShape = object({
  name: string(),
  available: boolean(),
  level: oneOf(...LEVELS),
  emulated: boolean(),
  by_name_only: boolean(),
  guarantees: arrayOf(string()),
  start_ms: nullable(number()),
  reason: nullable(string()),
  fix: nullable(string()),
  /** When `ringfence prove` tried it on this host, and which of its guarantees were broken. */
  proven_at: optional(nullable(string())),
  broken: optional(arrayOf(string())),
})
/** A backend with what it can do on this host. */
export type BackendView = Infer<typeof backendShape>
/** All backends with what they can do on this host. */
export const backendsShape = object({ backends: arrayOf(backendShape) })
/** All backends with what they can do on this host. */
export type Backends = Infer<typeof backendsShape>

const noteShape = object({
  id: string(),
  /** `stops`: sandboxes do not start; `weakens`: a layer or a limit is missing; `tells`: information. */
  weight: oneOf('stops', 'weakens', 'tells'),
  text: string(),
  fix: optional(string()),
})

/** The report of `ringfence doctor --json`. */
export const doctorShape = object({
  backends: arrayOf(backendShape),
  node: string(),
  kernel: string(),
  notes: arrayOf(noteShape),
})
/** The report of `ringfence doctor --json`. */
export type Doctor = Infer<typeof doctorShape>

/** The process answers. */
export const healthShape = object({ ok: literal(true) })
/** Whether the server can do work, or why not. */
export const readinessShape = object({ ready: boolean(), problems: arrayOf(string()) })
