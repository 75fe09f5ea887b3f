/** What the budget needs to know of a log. */
export type KeptOutput = {
  /** Bytes of memory that it holds. */
  readonly weight: number
  readonly isEnded: boolean
  /** Whether somebody reads it now. */
  readonly isRead: boolean
  /** Whether its oldest piece is one that nobody who is attached still waits for. */
  readonly hasSpare: boolean
  dropOldest(): void
}

type Holder = { weight: number; readonly logs: Set<KeptOutput> }

/**
 * How much command output the whole server keeps in memory. When there is more, the tenant that holds most gives some up:
 * first what its commands printed that have ended, the oldest end first, then the oldest output of its other commands.
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
   * A log that holds something. INVARIANT: one that ends is added again, so that logs that have ended lie in the order of
   * their end.
   */
  add(tenant: string, log: KeptOutput): void {
    const holder = this.#tenants.get(tenant) ?? { weight: 0, logs: new Set() }
    this.#tenants.set(tenant, holder)
    holder.logs.delete(log)
    holder.logs.add(log)
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

  /** Makes room. What readers still wait for is taken only from tenants other than the one that prints. */
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

/** The first to end that nobody reads, or else the heaviest that has something to spare. */
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
