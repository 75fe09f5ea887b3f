import { SandboxError } from '../../model/errors.ts'
import type { JsonSchema } from '../../model/shape.ts'

/** Parses arguments as small models write them: fenced, partly quoted, truncated, numbers as strings. */

const MAX_CHARS = 9 * 1024 * 1024

/** Extracts an object from model output. Throws if there is none. */
export function parseLenientObject(given: unknown): Readonly<Record<string, unknown>> {
  if (given === null || given === undefined || given === '') return {}
  if (typeof given === 'object' && !Array.isArray(given)) return given as Record<string, unknown>
  if (typeof given !== 'string') throw notJson('expected an object')
  if (given.length > MAX_CHARS)
    throw new SandboxError('too-large', `the arguments have ${given.length} characters`)
  for (const attempt of [given, unfenced(given), repaired(unfenced(given))]) {
    const value = parsed(attempt)
    if (typeof value === 'string' && value !== given) return parseLenientObject(value)
    if (typeof value === 'object' && value !== null && !Array.isArray(value))
      return value as Record<string, unknown>
  }
  throw notJson('invalid JSON')
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const unfenced = (text: string): string => (/```(?:json)?\s*([\s\S]*?)```/.exec(text)?.[1] ?? text).trim()

/** Repairs JSON in one pass: escapes newlines in strings, removes trailing commas, closes open brackets. */
function repaired(text: string): string {
  const start = text.indexOf('{')
  if (start < 0) return text
  const closers: string[] = []
  let out = ''
  let inText = false
  for (let at = start; at < text.length; at++) {
    const char = text[at] as string
    if (inText) {
      if (char === '\\') out += char + (text[++at] ?? '\\')
      else if (char === '\n') out += '\\n'
      else if (char === '\t') out += '\\t'
      else {
        out += char
        if (char === '"') inText = false
      }
      continue
    }
    if (char === '"') inText = true
    else if (char === '{' || char === '[') closers.push(char === '{' ? '}' : ']')
    else if (char === '}' || char === ']') {
      out = out.replace(/,\s*$/, '')
      closers.pop()
    }
    out += char
    if (closers.length === 0) return out
  }
  // SECURITY: a truncated string is not closed, because half a command must not run.
  return inText ? text : out.replace(/[,:]\s*$/, '') + closers.reverse().join('')
}

/** Converts strings to the number, boolean or list that the schema expects; the strict parser checks the rest. */
export function coerced(
  args: Readonly<Record<string, unknown>>,
  schema: JsonSchema,
): Record<string, unknown> {
  const properties = (schema.properties ?? {}) as Readonly<Record<string, JsonSchema>>
  const entries = Object.entries(args)
    .filter(([name, value]) => !(value === null && Object.hasOwn(properties, name)))
    .map(([name, value]) => [
      name,
      coerce(value, Object.hasOwn(properties, name) ? properties[name] : undefined),
    ])
  return Object.fromEntries(entries)
}

function coerce(value: unknown, schema: JsonSchema | undefined): unknown {
  if (typeof value !== 'string' || !schema) return value
  if ((schema.type === 'integer' || schema.type === 'number') && /^-?\d+(\.\d+)?$/.test(value.trim()))
    return Number(value)
  if (schema.type === 'boolean' && /^(true|false)$/i.test(value.trim()))
    return value.trim().toLowerCase() === 'true'
  if (schema.type === 'array') {
    const list = parsed(value)
    return Array.isArray(list) ? list : value
  }
  return value
}

const notJson = (why: string): SandboxError =>
  new SandboxError('invalid-input', `the arguments are not a JSON object: ${why}`, {
    hint: 'send the whole call again with complete JSON; nothing was done',
  })
