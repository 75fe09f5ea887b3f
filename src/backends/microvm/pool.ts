/** Something that stands still and waits for its user. */
export type Waiting = {
  readonly isAlive: () => boolean
  readonly destroy: () => Promise<void>
}

/** Kinds that were asked for last; what waits of older ones goes. */
const KINDS = 16
/** The caller's first command comes now; the next one can wait for it. */
const REFILL_MS = 100

type Kind<T> = { readonly ready: Promise<T | undefined>[]; readonly make: () => Promise<T> }

/**
 * Machines, and sandboxes in them, that were made beforehand and put to sleep.
 * SECURITY: the key holds everything that one was made for. Nothing of a guest ever ran in it, and one that was handed out
 * never comes back.
 */
export class ReadyPool<T extends Waiting> {
  readonly #size: number
  readonly #kinds = new Map<string, Kind<T>>()
  #closed = false

  constructor(size: number) {
    this.#size = size
  }

  get isOn(): boolean {
    return this.#size > 0
  }

  /** One that waits, or nothing; `make` makes the next ones, asleep. */
  async take(key: string, make: () => Promise<T>): Promise<T | undefined> {
    if (!this.isOn) return undefined
    const kind = this.#kinds.get(key) ?? { ready: [], make }
    // The one that was used last is the last to go.
    this.#kinds.delete(key)
    this.#kinds.set(key, kind)
    const found = await kind.ready.shift()
    setTimeout(() => this.#fill(kind), REFILL_MS).unref()
    if (found?.isAlive()) return found
    await found?.destroy().catch(() => {})
    return undefined
  }

  async close(): Promise<void> {
    this.#closed = true
    await Promise.all([...this.#kinds.keys()].map((key) => this.#forget(key)))
  }

  #fill(kind: Kind<T>): void {
    while (!this.#closed && kind.ready.length < this.#size) kind.ready.push(this.#make(kind))
    for (const key of [...this.#kinds.keys()].slice(0, -KINDS)) void this.#forget(key)
  }

  /** A failure costs nobody anything: whoever comes next makes its own and hears why. */
  async #make(kind: Kind<T>): Promise<T | undefined> {
    try {
      const made = await kind.make()
      if (!this.#closed) return made
      await made.destroy()
    } catch {
      // Told to the next one who tries.
    }
    return undefined
  }

  async #forget(key: string): Promise<void> {
    const kind = this.#kinds.get(key)
    this.#kinds.delete(key)
    for (const ready of kind?.ready.splice(0) ?? []) await (await ready)?.destroy().catch(() => {})
  }
}
