/** One thing that is prepared or being prepared. */
type Entry<T> = { readonly item: Promise<T | undefined>; ready?: T }

type Kind<T> = {
  readonly size: number
  readonly make: () => Promise<T>
  /** Kept until the pool closes; other kinds go when too many newer ones were asked for. */
  readonly pinned: boolean
  readonly entries: Entry<T>[]
}

type Options<T> = {
  /** How many of each kind are kept ready. */
  readonly size: number
  /** Kinds that are kept, besides the pinned ones; the least recently used go first. */
  readonly maxKinds?: number
  /** Time between handing one out and making the next: whoever took one starts its first command now. */
  readonly refillMs?: number
  /** Time until a pinned kind is tried again after a failure. */
  readonly retryMs?: number
  readonly isUsable: (item: T) => boolean
  readonly discard: (item: T) => Promise<void>
}

type TakeOptions<T> = {
  /** Refuses what is next in line; it stays for somebody else. */
  readonly accepts?: (item: T) => boolean
  /** Whether to wait for one that is still being made. */
  readonly waits?: boolean
}

/**
 * Sandboxes, containers and machines that were prepared beforehand and that nobody has used.
 * SECURITY: the key must hold everything that one was made for. One that was handed out never comes back.
 */
export class WarmPool<T> {
  readonly #options: Required<Options<T>>
  readonly #kinds = new Map<string, Kind<T>>()
  #isClosed = false

  constructor(options: Options<T>) {
    this.#options = { maxKinds: 16, refillMs: 100, retryMs: 1000, ...options }
  }

  /** How many are ready now. */
  get ready(): number {
    return this.#entries().filter(({ ready }) => ready !== undefined).length
  }

  /** Keeps `size` of a kind ready from the next `fill` on. */
  pin(key: string, size: number, make: () => Promise<T>): void {
    this.#kinds.set(key, { size, make, pinned: true, entries: [] })
  }

  /** Makes what is missing, in the background. */
  fill(): void {
    for (const [key, kind] of this.#kinds) this.#fillKind(key, kind)
  }

  /**
   * One that is ready, or nothing. With `make`, a kind that is new here is kept ready from now on; without it only pinned
   * kinds are found.
   */
  async take(
    key: string,
    make?: () => Promise<T>,
    { accepts = () => true, waits = true }: TakeOptions<T> = {},
  ): Promise<T | undefined> {
    const kind = this.#kindFor(key, make)
    if (!kind) return undefined
    const next = kind.entries.find(({ ready }) => ready !== undefined)
    if (next?.ready !== undefined && !accepts(next.ready)) return undefined
    const found = await this.#nextUsable(kind, waits)
    const delayMs = kind.pinned && found === undefined ? 0 : this.#options.refillMs
    setTimeout(() => this.#fillKind(key, kind), delayMs).unref()
    return found
  }

  /** Discards everything that was made so far. Pinned kinds stay, and are made again by the next `fill`. */
  async clear(): Promise<void> {
    const all = this.#entries()
    for (const [key, kind] of [...this.#kinds]) {
      this.#kinds.delete(key)
      // A kind of its own, so that what is still being made for the old one is discarded.
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

  async #nextUsable(kind: Kind<T>, waits: boolean): Promise<T | undefined> {
    for (;;) {
      const index = waits ? 0 : kind.entries.findIndex(({ ready }) => ready !== undefined)
      const entry = kind.entries[index]
      if (!entry) return undefined
      kind.entries.splice(index, 1)
      const item = entry.ready ?? (await entry.item)
      if (item === undefined) return undefined
      if (this.#options.isUsable(item)) return item
      await this.#options.discard(item).catch(() => {})
    }
  }

  #fillKind(key: string, kind: Kind<T>): void {
    if (this.#kinds.get(key) !== kind) return
    while (!this.#isClosed && kind.entries.length < kind.size) kind.entries.push(this.#make(key, kind))
    const unpinned = [...this.#kinds].filter(([, { pinned }]) => !pinned)
    for (const [old, { entries }] of unpinned.slice(0, -this.#options.maxKinds)) {
      this.#kinds.delete(old)
      for (const entry of entries) void this.#discard(entry)
    }
  }

  /** A failure is not reported here: the next caller makes its own and gets the reason. */
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

  /** The entry that failed kept its place until now, so that the kind was not tried again at once. */
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
