/** What the budget needs to know about an output log. */
export type KeptOutput = {
  /** Bytes of memory in use. */
  readonly weight: number
  readonly isEnded: boolean
  /** Whether a reader is attached. */
  readonly isRead: boolean
  /** Whether no attached reader still needs the oldest chunk. */
  readonly hasSpare: boolean
  dropOldest(): void
}

type Holder = { weight: number; readonly logs: Set<KeptOutput> }

/**
 * Limits the command output that the whole server keeps in memory. Above the limit, the tenant with the most output loses
 * some: first the output of its ended commands, the earliest ended first, then the oldest output of its other commands.
 */
export class OutputBudget {
  readonly bytes: number
  readonly #tenants = new Map<string, Holder>()
  #used = 0

  constructor(bytes: number) {
    this.bytes = bytes
  }

  get used(): number {
    return this.#used
  }

  get isOver(): boolean {
    return this.#used > this.bytes
  }

  /**
   * Adds a log that is not empty. INVARIANT: a log is added again when it ends, so that ended logs are ordered by the time
   * they ended.
   */
  add(tenant: string, log: KeptOutput): void {
    const holder = this.#tenants.get(tenant) ?? { weight: 0, logs: new Set() }
    this.#tenants.set(tenant, holder)
    holder.logs.delete(log)
    holder.logs.add(log)
  }

  /** Counts output that waits outside of a log until the result is called; `drop` must give it up. */
  hold(tenant: string, bytes: number, drop: () => void): () => void {
    const held = { weight: bytes, isEnded: false, isRead: true, hasSpare: false, dropOldest: () => giveUp() }
    const release = (): void => {
      this.count(tenant, -held.weight)
      this.remove(tenant, held)
      held.weight = 0
    }
    const giveUp = (): void => {
      release()
      drop()
    }
    this.add(tenant, held)
    this.count(tenant, bytes)
    return release
  }

  remove(tenant: string, log: KeptOutput): void {
    const holder = this.#tenants.get(tenant)
    holder?.logs.delete(log)
    if (holder?.logs.size === 0) this.#tenants.delete(tenant)
  }

  count(tenant: string, bytes: number): void {
    this.#used += bytes
    const holder = this.#tenants.get(tenant)
    if (holder) holder.weight += bytes
  }

  /** Frees memory. Output that a reader still needs is dropped only for tenants other than the one that prints. */
  reclaim(printing: string): void {
    while (this.isOver) {
      const [tenant, holder] = this.#largest()
      const victim = holder && (spareOf(holder) ?? (tenant === printing ? undefined : heaviestOf(holder)))
      if (!victim) return
      victim.dropOldest()
    }
  }

  #largest(): readonly [string | undefined, Holder | undefined] {
    let found: readonly [string | undefined, Holder | undefined] = [undefined, undefined]
    for (const entry of this.#tenants) if (entry[1].weight > (found[1]?.weight ?? 0)) found = entry
    return found
  }
}

/** The earliest ended log without a reader, or else the largest log that has unneeded output. */
function spareOf({ logs }: Holder): KeptOutput | undefined {
  let heaviest: KeptOutput | undefined
  for (const log of logs) {
    if (!log.hasSpare) continue
    if (log.isEnded && !log.isRead) return log
    if (log.weight > (heaviest?.weight ?? 0)) heaviest = log
  }
  return heaviest
}

function heaviestOf({ logs }: Holder): KeptOutput | undefined {
  let heaviest: KeptOutput | undefined
  for (const log of logs) if (log.weight > (heaviest?.weight ?? 0)) heaviest = log
  return heaviest
}
