import { SandboxError } from '../model/errors.ts'
import type { Json } from '../model/event.ts'

/** Deeper than any event of ours; it keeps a hostile value from exhausting the stack. */
const MAX_DEPTH = 64

/**
 * The one text of a JSON value (RFC 8785): no spaces, keys by UTF-16 code unit, numbers as ECMAScript prints
 * them. What has no such text (NaN, `undefined`, a lone surrogate, a class instance) is refused, never adapted:
 * two different values must not share a hash.
 */
export function canonical(value: Json): string {
  return write(value, 0)
}

/** A member as it stands in an object: `"key":value`. */
export function canonicalMember(key: string, value: Json): string {
  return `${quote(key)}:${write(value, 1)}`
}

function write(value: unknown, depth: number): string {
  if (depth > MAX_DEPTH) refuse('it is nested too deeply')
  if (typeof value === 'string') return quote(value)
  if (typeof value === 'boolean' || value === null) return String(value)
  if (typeof value === 'number') {
    if (!Number.isFinite(value)) refuse('it holds a number that JSON does not have')
    return JSON.stringify(value)
  }
  if (Array.isArray(value)) return `[${Array.from(value, (item) => write(item, depth + 1)).join(',')}]`
  if (!isPlainObject(value)) refuse('it holds something that is not JSON')
  const members = Object.keys(value)
    .sort()
    .map((key) => `${quote(key)}:${write(value[key], depth + 1)}`)
  return `{${members.join(',')}}`
}

function quote(text: string): string {
  // PLATFORM: in Node since 20, in TypeScript's library only with ES2024.
  if (!(text as string & { isWellFormed(): boolean }).isWellFormed())
    refuse('it holds half of a surrogate pair')
  // RFC 8785 took its escapes from here.
  return JSON.stringify(text)
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false
  const prototype = Object.getPrototypeOf(value)
  return prototype === Object.prototype || prototype === null
}

// SECURITY: says what is wrong, never what the value was; events may quote what an agent typed.
function refuse(problem: string): never {
  throw new SandboxError('invalid-input', `the event cannot be written as canonical JSON: ${problem}`)
}
