import { createHash } from 'node:crypto'
import type { Plan } from '../model/plan.ts'

/** Kinds that were asked for last; the containers of older ones go. */
const KINDS = 16
/** Whoever took one starts its first command now; the next one must not be in its way. */
const LATER_MS = 100

/** Something that was made beforehand and may have ended since. */
export interface Ready {
  readonly isGone: boolean
  close(): Promise<void>
}

export type Makers<V> = {
  /** For somebody who waits for it. */
  readonly now: () => Promise<V>
  /** For nobody yet. */
  readonly ahead: () => Promise<V>
}

type Kind<V> = { readonly ready: Promise<V | undefined>[]; readonly ahead: () => Promise<V> }

/**
 * Containers that are up, fenced and configured, and that no command has seen.
 * SECURITY: the key is everything in a plan with whose it is and the image, so that nobody gets a container that was made
 * for somebody or something else. One that was handed out never comes back.
 */
export class Waiting<V extends Ready> {
  readonly #size: number
  readonly #kinds = new Map<string, Kind<V>>()
  #closed = false

  constructor(size: number) {
    this.#size = size
  }

  async take(plan: Plan, whose: string, { now, ahead }: Makers<V>): Promise<V> {
    // What is made for one sandbox alone would never fit another.
    if (this.#size === 0 || plan.files.length > 0 || plan.own.length > 0) return now()
    const key = kindOf(plan, whose)
    const kind = this.#kinds.get(key) ?? { ready: [], ahead }
    // The one that was used last is the last to go.
    this.#kinds.delete(key)
    this.#kinds.set(key, kind)
    const found = await kind.ready.shift()
    setTimeout(() => this.#fill(key, kind), LATER_MS).unref()
    return found && !found.isGone ? found : now()
  }

  async close(): Promise<void> {
    this.#closed = true
    await Promise.all([...this.#kinds.keys()].map((key) => this.#forget(key)))
  }

  #fill(key: string, kind: Kind<V>): void {
    if (this.#kinds.get(key) !== kind) return
    while (!this.#closed && kind.ready.length < this.#size) {
      // A failure costs nobody anything: whoever comes next makes its own and hears why.
      kind.ready.push(kind.ahead().catch(() => undefined))
    }
    for (const key of [...this.#kinds.keys()].slice(0, -KINDS)) void this.#forget(key)
  }

  async #forget(key: string): Promise<void> {
    const kind = this.#kinds.get(key)
    this.#kinds.delete(key)
    for (const ready of kind?.ready.splice(0) ?? []) await (await ready)?.close().catch(() => {})
  }
}

/** INVARIANT: the whole plan. A field that a plan gets some day makes kinds more exact, never less. */
export const kindOf = (plan: Plan, whose: string): string =>
  createHash('sha256')
    .update(JSON.stringify([whose, plan]))
    .digest('hex')
