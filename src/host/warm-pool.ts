/** One item that is ready or being created. */
type Entry<T> = { readonly item: Promise<T | undefined>; ready?: T }

type Kind<T> = {
  readonly size: number
  readonly make: () => Promise<T>
  /** Kept until the pool closes; other kinds are evicted when too many newer ones are requested. */
  readonly pinned: boolean
  readonly entries: Entry<T>[]
}

type Options<T> = {
  /** How many items of each kind are kept ready. */
  readonly size: number
  /** The number of kinds that are kept besides the pinned ones; the least recently used kind is evicted first. */
  readonly maxKinds?: number
  /** The delay before a handed-out item is replaced, so that refilling does not slow down the taker's first command. */
  readonly refillMs?: number
  /** The delay before a pinned kind is tried again after a failure. */
  readonly retryMs?: number
  readonly isUsable: (item: T) => boolean
  readonly discard: (item: T) => Promise<void>
}

type TakeOptions<T> = {
  /** Returns false to reject the next item, which stays for other callers. */
  readonly accepts?: (item: T) => boolean
  /** Whether to wait for an item that is still being created. */
  readonly wait?: boolean
  /** The delay before this item is replaced, if not the pool's. */
  readonly refillMs?: number
}

/**
 * Unused sandboxes, containers and machines that were created in advance.
 * SECURITY: the key must contain everything that an item depends on. A handed-out item never returns.
 */
export class WarmPool<T> {
  readonly #options: Required<Options<T>>
  readonly #kinds = new Map<string, Kind<T>>()
  #isClosed = false

  constructor(options: Options<T>) {
    this.#options = { maxKinds: 16, refillMs: 100, retryMs: 1000, ...options }
  }

  /** How many items are ready now. */
  get ready(): number {
    return this.#entries().filter(({ ready }) => ready !== undefined).length
  }

  /** Keeps `size` items of a kind ready from the next `fill` on. */
  pin(key: string, size: number, make: () => Promise<T>): void {
    this.#kinds.set(key, { size, make, pinned: true, entries: [] })
  }

  /** Creates missing items in the background. */
  fill(): void {
    for (const [key, kind] of this.#kinds) this.#fillKind(key, kind)
  }

  /**
   * Takes a ready item, or returns undefined. With `make`, a kind that is new here is kept ready from now on; without it
   * only pinned kinds are found.
   */
  async take(
    key: string,
    make?: () => Promise<T>,
    { accepts = () => true, wait = true, refillMs = this.#options.refillMs }: TakeOptions<T> = {},
  ): Promise<T | undefined> {
    const kind = this.#kindFor(key, make)
    if (!kind) return undefined
    const found = await this.#nextUsable(key, kind, { accepts, wait })
    const delayMs = kind.pinned && found === undefined ? 0 : refillMs
    setTimeout(() => this.#fillKind(key, kind), delayMs).unref()
    return found
  }

  /** Discards all items. Pinned kinds stay, and the next `fill` creates their items again. */
  async clear(): Promise<void> {
    const all: Entry<T>[] = []
    for (const [key, kind] of [...this.#kinds]) {
      this.#kinds.delete(key)
      all.push(...kind.entries.splice(0))
      // A new object, so that items still being created for the old one are discarded.
      if (kind.pinned && !this.#isClosed) this.#kinds.set(key, { ...kind, entries: [] })
    }
    await Promise.all(all.map((entry) => this.#discard(entry)))
  }

  async close(): Promise<void> {
    this.#isClosed = true
    await this.clear()
  }

  #entries(): readonly Entry<T>[] {
    return [...this.#kinds.values()].flatMap(({ entries }) => entries)
  }

  #kindFor(key: string, make: (() => Promise<T>) | undefined): Kind<T> | undefined {
    const known = this.#kinds.get(key)
    if (!known && (!make || this.#options.size === 0)) return undefined
    const kind = known ?? {
      size: this.#options.size,
      make: make as () => Promise<T>,
      pinned: false,
      entries: [],
    }
    // Insertion order is the order of last use.
    this.#kinds.delete(key)
    this.#kinds.set(key, kind)
    return kind
  }

  async #nextUsable(
    key: string,
    kind: Kind<T>,
    { accepts, wait }: Required<Pick<TakeOptions<T>, 'accepts' | 'wait'>>,
  ): Promise<T | undefined> {
    const { isUsable, discard } = this.#options
    for (;;) {
      const index = wait ? 0 : kind.entries.findIndex(({ ready }) => ready !== undefined)
      const entry = kind.entries[index]
      if (!entry) return undefined
      // The caller may not have it; it stays for another one.
      if (entry.ready !== undefined && isUsable(entry.ready) && !accepts(entry.ready)) return undefined
      kind.entries.splice(index, 1)
      const item = entry.ready ?? (await entry.item)
      if (item === undefined) return undefined
      // SECURITY: the pool may have been cleared while an item was created or discarded.
      const isCurrent = this.#kinds.get(key) === kind
      if (isCurrent && isUsable(item) && accepts(item)) return item
      await discard(item).catch(() => {})
      if (!isCurrent) return undefined
    }
  }

  #fillKind(key: string, kind: Kind<T>): void {
    if (this.#kinds.get(key) !== kind) return
    while (!this.#isClosed && kind.entries.length < kind.size) kind.entries.push(this.#make(key, kind))
    const unpinned = [...this.#kinds].filter(([, { pinned }]) => !pinned)
    for (const [old, { entries }] of unpinned.slice(0, -this.#options.maxKinds)) {
      this.#kinds.delete(old)
      for (const entry of entries.splice(0)) void this.#discard(entry)
    }
  }

  /** A failure is not reported here: the next caller creates its own item and gets the error. */
  #make(key: string, kind: Kind<T>): Entry<T> {
    const item = kind.make().then(
      (made) => {
        entry.ready = made
        return made
      },
      () => {
        const index = kind.entries.indexOf(entry)
        if (kind.pinned) setTimeout(() => this.#retry(key, kind, entry), this.#options.retryMs).unref()
        else if (index !== -1) kind.entries.splice(index, 1)
        return undefined
      },
    )
    const entry: Entry<T> = { item }
    return entry
  }

  /** A failed entry stays in the list until now, so that the kind is not retried at once. */
  #retry(key: string, kind: Kind<T>, failed: Entry<T>): void {
    const index = kind.entries.indexOf(failed)
    if (index !== -1) kind.entries.splice(index, 1)
    this.#fillKind(key, kind)
  }

  async #discard({ item }: Entry<T>): Promise<void> {
    const made = await item
    if (made !== undefined) await this.#options.discard(made).catch(() => {})
  }
}
