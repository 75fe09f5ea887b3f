import { SandboxError } from '../model/errors.ts'
import type { Json } from '../model/event.ts'

/** Deeper than any of our events; prevents a hostile value from exhausting the stack. */
const MAX_DEPTH = 64

/**
 * The canonical text of a JSON value (RFC 8785): no spaces, keys sorted by UTF-16 code unit, numbers as ECMAScript prints
 * them. Values without such a text (NaN, `undefined`, a lone surrogate, a class instance) are rejected, never converted:
 * two different values must not have the same hash.
 */
export function canonical(value: Json): string {
  return write(value, 0)
}

/** A member of an object: `"key":value`. */
export function canonicalMember(key: string, value: Json): string {
  return `${quote(key)}:${write(value, 1)}`
}

function write(value: unknown, depth: number): string {
  if (depth > MAX_DEPTH) refuse('it is nested too deeply')
  if (typeof value === 'string') return quote(value)
  if (typeof value === 'boolean' || value === null) return String(value)
  if (typeof value === 'number') {
    if (!Number.isFinite(value)) refuse('it contains a number that JSON cannot represent')
    return JSON.stringify(value)
  }
  if (Array.isArray(value)) return `[${Array.from(value, (item) => write(item, depth + 1)).join(',')}]`
  if (!isPlainObject(value)) refuse('it contains a value that is not JSON')
  const members = Object.keys(value)
    .sort()
    .map((key) => `${quote(key)}:${write(value[key], depth + 1)}`)
  return `{${members.join(',')}}`
}

function quote(text: string): string {
  // PLATFORM: in Node since 20, in TypeScript's library only with ES2024.
  if (!(text as string & { isWellFormed(): boolean }).isWellFormed()) refuse('it contains a lone surrogate')
  // RFC 8785 defines the same escapes as JSON.stringify.
  return JSON.stringify(text)
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false
  const prototype = Object.getPrototypeOf(value)
  return prototype === Object.prototype || prototype === null
}

// SECURITY: the message never contains the value; events may quote what an agent typed.
function refuse(problem: string): never {
  throw new SandboxError('invalid-input', `the event cannot be written as canonical JSON: ${problem}`)
}
