import { SandboxError } from '../model/errors.ts'

/** Plain JSON data. */
export type Plain = null | boolean | number | string | readonly Plain[] | { readonly [key: string]: Plain }

/** SECURITY: property names that reach a prototype if a caller merges the copy into another object. */
const DROPPED: ReadonlySet<string> = new Set(['__proto__', 'constructor', 'prototype'])
const MAX_DEPTH = 500

/**
 * Copies own data properties only, as JSON would: no getter and no `toJSON` runs; functions, symbols and the names
 * that reach a prototype are left out.
 */
export function plainCopy(value: unknown): Plain | undefined {
  return copy(value, 0)
}

/** Applies the same filter to JSON text returned by a guest. */
export function plainResult(text: string): Plain | undefined {
  try {
    return copy(JSON.parse(text), 0)
  } catch (cause) {
    throw new SandboxError('resource-exhausted', 'the value is nested too deeply', { cause })
  }
}

function copy(value: unknown, depth: number): Plain | undefined {
  if (depth > MAX_DEPTH)
    throw new SandboxError('invalid-input', 'the context is nested too deeply or refers to itself')
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return value
    case 'number':
      return Number.isFinite(value) ? value : null
    case 'bigint':
      throw new SandboxError('invalid-input', 'the context holds a bigint, which has no JSON form')
    case 'object':
      return value === null ? null : copyObject(value, depth)
    default:
      return undefined
  }
}

function copyObject(value: object, depth: number): Plain {
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? null : value.toISOString()
  if (Array.isArray(value)) return copyList(value, depth)
  const out: Record<string, Plain> = {}
  for (const key of Object.keys(value)) {
    const part = DROPPED.has(key) ? undefined : copy(dataOf(value, key), depth + 1)
    if (part !== undefined) out[key] = part
  }
  return out
}

const copyList = (list: readonly unknown[], depth: number): Plain =>
  Array.from({ length: list.length }, (_, index) => copy(dataOf(list, String(index)), depth + 1) ?? null)

const dataOf = (owner: object, key: string): unknown => Object.getOwnPropertyDescriptor(owner, key)?.value
