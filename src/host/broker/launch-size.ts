import { SandboxError } from '../../model/errors.ts'
import type { Launch } from '../process/spawn.ts'
import { readText } from '../system.ts'

/** PLATFORM: the longest argument or variable that Linux takes, with the byte that ends it. */
const MAX_TEXT = 128 * 1024
/** All of them with their pointers: a quarter of the limit of the stack, but at most this. */
const MAX_TOTAL = 6 * 1024 * 1024
const POINTER = 8

/** Throws if the kernel would not take the arguments and variables. Node reports that before anything else happens, a front only later. */
export function assertStartable({ file, args, env }: Launch): void {
  const variables = Object.entries(env).map(([name, value]) => `${name}=${value}`)
  const sizes = [file, file, ...args, ...variables].map((text) => Buffer.byteLength(text) + 1)
  const total = sizes.reduce((sum, size) => sum + size + POINTER, 0)
  if (total > maxTotal() || sizes.some((size) => size > MAX_TEXT))
    throw new SandboxError('launch-failed', `cannot start ${file}: spawn E2BIG`)
}

function maxTotal(): number {
  const stack = /^Max stack size\s+(\d+)/m.exec(readText('/proc/self/limits') ?? '')?.[1]
  return stack === undefined ? MAX_TOTAL : Math.max(MAX_TEXT, Math.min(MAX_TOTAL, Number(stack) / 4))
}
