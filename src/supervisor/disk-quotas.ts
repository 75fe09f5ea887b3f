import type { SandboxError } from '../model/errors.ts'

/** What a write takes from, and when it is refused. */
export type DiskQuota = {
  /** Writes with the same name share the quota. */
  readonly name: string
  /** The stored files and their bytes. Called before a write, and again after it while others go on. */
  readonly stored: () => Promise<ReadonlyMap<string, number>>
  /** The file that the write replaces; it does not count for this write. */
  readonly replaces?: string
  /** The most bytes of all files together. */
  readonly bytes: number
  /** The most bytes of this write. */
  readonly each?: number
  /** The most files. */
  readonly files?: number
  readonly refuse: () => SandboxError
}

/** A write that counts towards a quota from its first byte. */
export type DiskWrite = {
  /** Counts bytes, before they are written; fewer than zero gives some back. Throws if they have no room. */
  readonly take: (bytes: number) => void
  /** To be called once the files of the write are stored, or removed. */
  readonly end: () => Promise<void>
}

/** What the running writes of one quota have in common. */
type Running = { writes: number; writing: number; stored: number }

/** The server's free disk space is checked each time that so much was written. */
const FREE_SPACE_EVERY = 4 * 1024 * 1024

/**
 * Disk quotas that many writes share. SECURITY: every write is compared with what all running writes have taken and with what is
 * stored by now, not with what was stored when it began: bytes of a write that has ended stay counted for all others.
 */
export class DiskQuotas {
  readonly #running = new Map<string, Running>()
  /** The last listing of each quota; the next one waits for it. */
  readonly #turns = new Map<string, Promise<unknown>>()
  readonly #assertFreeSpace: () => void
  #unchecked = 0

  /** `assertFreeSpace` throws if the disk of the server is almost full. */
  constructor(assertFreeSpace: () => void = () => {}) {
    this.#assertFreeSpace = assertFreeSpace
  }

  /** Begins a write. Its `end` must be called, whatever happens. */
  begin(quota: DiskQuota): Promise<DiskWrite> {
    const { name, replaces = '', files = Number.POSITIVE_INFINITY, refuse } = quota
    return this.#inTurn(name, async () => {
      const listed = await quota.stored()
      const running = this.#running.get(name) ?? { writes: 0, writing: 0, stored: 0 }
      if (listed.size - Number(listed.has(replaces)) + running.writes >= files) throw refuse()
      running.stored = totalOf(listed)
      running.writes++
      this.#running.set(name, running)
      return this.#write(quota, running, listed.get(replaces) ?? 0)
    })
  }

  #write(quota: DiskQuota, running: Running, replaced: number): DiskWrite {
    const { bytes: most, each = Number.POSITIVE_INFINITY, refuse } = quota
    let own = 0
    return {
      take: (bytes) => {
        if (running.stored - replaced + running.writing + bytes > most || own + bytes > each) throw refuse()
        this.#checkFreeSpace(bytes)
        own += bytes
        running.writing += bytes
      },
      end: () => this.#inTurn(quota.name, () => this.#end(quota, running, own)),
    }
  }

  async #end({ name, stored }: DiskQuota, running: Running, own: number): Promise<void> {
    running.writes--
    if (running.writes === 0) return void this.#running.delete(name)
    // INVARIANT: counted twice for a moment, but never not at all.
    running.stored = await stored().then(totalOf, () => running.stored + own)
    running.writing -= own
  }

  #checkFreeSpace(bytes: number): void {
    this.#unchecked += bytes
    if (this.#unchecked < FREE_SPACE_EVERY) return
    this.#unchecked = 0
    this.#assertFreeSpace()
  }

  async #inTurn<T>(name: string, work: () => Promise<T>): Promise<T> {
    const turn = (this.#turns.get(name) ?? Promise.resolve()).then(work)
    const settled = turn.catch(() => {})
    this.#turns.set(name, settled)
    try {
      return await turn
    } finally {
      if (this.#turns.get(name) === settled) this.#turns.delete(name)
    }
  }
}

const totalOf = (files: ReadonlyMap<string, number>): number =>
  [...files.values()].reduce((total, bytes) => total + bytes, 0)
