import { createHash } from 'node:crypto'
import type { Plan } from '../model/plan.ts'
import type { Vessel } from './vessel.ts'

/** Kinds that were asked for last; the containers of older ones go. */
const KINDS = 16

type Kind<V> = { readonly ready: Promise<V | undefined>[]; readonly start: () => Promise<V> }

/**
 * Containers that are up and whose agents wait for their configuration.
 * SECURITY: the key is everything in a plan with whose it is and the image, so that nobody gets a container that was made
 * for somebody or something else. One that was handed out never comes back.
 */
export class Waiting<V extends Vessel> {
  readonly #size: number
  readonly #kinds = new Map<string, Kind<V>>()
  #closed = false

  constructor(size: number) {
    this.#size = size
  }

  async take(plan: Plan, whose: string, start: () => Promise<V>): Promise<V> {
    // What is made for one sandbox alone would never fit another.
    if (this.#size === 0 || plan.files.length > 0 || plan.own.length > 0) return start()
    const key = kindOf(plan, whose)
    const kind = this.#kinds.get(key) ?? { ready: [], start }
    // The one that was used last is the last to go.
    this.#kinds.delete(key)
    this.#kinds.set(key, kind)
    const found = await kind.ready.shift()
    setImmediate(() => this.#fill(kind))
    return found && !found.channel.destroyed ? found : start()
  }

  async close(): Promise<void> {
    this.#closed = true
    await Promise.all([...this.#kinds.keys()].map((key) => this.#forget(key)))
  }

  #fill(kind: Kind<V>): void {
    while (!this.#closed && kind.ready.length < this.#size) {
      // A failure costs nobody anything: whoever comes next makes its own and hears why.
      kind.ready.push(kind.start().catch(() => undefined))
    }
    for (const key of [...this.#kinds.keys()].slice(0, -KINDS)) void this.#forget(key)
  }

  async #forget(key: string): Promise<void> {
    const kind = this.#kinds.get(key)
    this.#kinds.delete(key)
    for (const ready of kind?.ready.splice(0) ?? []) await (await ready)?.destroy().catch(() => {})
  }
}

/** INVARIANT: the whole plan. A field that a plan gets some day makes kinds more exact, never less. */
export const kindOf = (plan: Plan, whose: string): string =>
  createHash('sha256')
    .update(JSON.stringify([whose, plan]))
    .digest('hex')
