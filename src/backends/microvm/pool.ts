import type { GuestMachine } from './guest-machine.ts'

/** Kinds that were asked for last; the machines of older ones go. */
const KINDS = 8

type Kind = {
  readonly ready: Promise<GuestMachine | undefined>[]
  readonly start: () => Promise<GuestMachine>
}

/**
 * Machines that stand still and wait. SECURITY: nothing of a guest ever ran in one, none of them knows yet for whom it is
 * made, and who it is gets decided when it is handed out. One that was handed out never comes back.
 */
export class MachinePool {
  readonly #size: number
  readonly #warm: (machine: GuestMachine) => Promise<void>
  readonly #kinds = new Map<string, Kind>()
  #closed = false

  constructor(size: number, warm: (machine: GuestMachine) => Promise<void>) {
    this.#size = size
    this.#warm = warm
  }

  async take(key: string, start: () => Promise<GuestMachine>): Promise<GuestMachine> {
    if (this.#size === 0) return start()
    const kind = this.#kinds.get(key) ?? { ready: [], start }
    // The one that was used last is the last to go.
    this.#kinds.delete(key)
    this.#kinds.set(key, kind)
    const found = await kind.ready.shift()
    setTimeout(() => this.#fill(kind), REFILL_MS).unref()
    return found && !found.channel.destroyed ? found : start()
  }

  /** How many stand ready. */
  get ready(): number {
    return [...this.#kinds.values()].reduce((sum, { ready }) => sum + ready.length, 0)
  }

  async close(): Promise<void> {
    this.#closed = true
    await Promise.all([...this.#kinds.keys()].map((key) => this.#forget(key)))
  }

  #fill(kind: Kind): void {
    while (!this.#closed && kind.ready.length < this.#size) kind.ready.push(this.#prepare(kind))
    for (const key of [...this.#kinds.keys()].slice(0, -KINDS)) void this.#forget(key)
  }

  /** A failure costs nobody anything: whoever comes next makes its own and hears why. */
  async #prepare(kind: Kind): Promise<GuestMachine | undefined> {
    let machine: GuestMachine | undefined
    try {
      machine = await kind.start()
      await this.#warm(machine)
      await machine.pause()
      if (!this.#closed) return machine
    } catch {
      // Told to the next one who tries.
    }
    await machine?.destroy().catch(() => {})
    return undefined
  }

  async #forget(key: string): Promise<void> {
    const kind = this.#kinds.get(key)
    this.#kinds.delete(key)
    for (const ready of kind?.ready.splice(0) ?? []) await (await ready)?.destroy().catch(() => {})
  }
}

/** The caller's first command comes now; the next machine can wait for it. */
const REFILL_MS = 50
