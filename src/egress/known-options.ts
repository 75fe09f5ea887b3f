import { Socket } from 'node:net'

const KINDS = 8
const SOCKETS = 64

let known = false

/**
 * PLATFORM: V8 11 (Node 20) copies the options of a new socket by a short cut while it has seen few kinds of them, and
 * every look at such a copy misses its caches: 15 µs for each socket. Once it has seen many kinds it takes the plain way,
 * 1 µs. So it is shown some, once, for about a millisecond.
 */
export function knowSocketOptions(): void {
  if (known) return
  known = true
  for (let i = 0; i < SOCKETS; i++) new Socket({ [`kind${i % KINDS}`]: true })
}
