/**
 * Whoever waits, by caller. The next is the first of the caller that has the fewest under way; among equals, callers take
 * turns. So one that sends twenty waits for its own, and one that sends a single request waits for one end at most.
 */
export class FairQueue<T> {
  readonly #waiting = new Map<string, T[]>()
  readonly #running = new Map<string, number>()

  get size(): number {
    let size = 0
    for (const items of this.#waiting.values()) size += items.length
    return size
  }

  push(caller: string, item: T): void {
    const items = this.#waiting.get(caller)
    if (items) items.push(item)
    else this.#waiting.set(caller, [item])
  }

  /** The next in turn; it counts as under way until `ended`. */
  shift(): T | undefined {
    const caller = this.#next()
    const items = caller === undefined ? undefined : this.#waiting.get(caller)
    if (caller === undefined || items === undefined) return undefined
    const item = items.shift()
    // Behind the others, who may be as poor.
    this.#waiting.delete(caller)
    if (items.length > 0) this.#waiting.set(caller, items)
    this.started(caller)
    return item
  }

  /** One that did not have to wait. */
  started(caller: string): void {
    this.#running.set(caller, (this.#running.get(caller) ?? 0) + 1)
  }

  ended(caller: string): void {
    const left = (this.#running.get(caller) ?? 1) - 1
    if (left > 0) this.#running.set(caller, left)
    else this.#running.delete(caller)
  }

  /** Everybody who waits, in no order; the queue is empty afterwards. */
  drain(): readonly T[] {
    const all = [...this.#waiting.values()].flat()
    this.#waiting.clear()
    return all
  }

  #next(): string | undefined {
    let best: string | undefined
    let fewest = Number.POSITIVE_INFINITY
    for (const caller of this.#waiting.keys()) {
      const running = this.#running.get(caller) ?? 0
      if (running >= fewest) continue
      best = caller
      fewest = running
    }
    return best
  }
}
