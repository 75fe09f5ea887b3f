import type { BigIntStats } from 'node:fs'

type Times = { readonly atim: bigint; readonly mtim: bigint }
type Set = { readonly wanted: Times; readonly stored: Times }

const MAX_KEPT = 1000

/**
 * Times that a program set. PLATFORM: Node sets times as floating-point seconds, which cannot hold nanoseconds; within
 * the run, the program reads back exactly what it set, as long as nothing else changed the file.
 */
export class WasiTimes {
  readonly #set = new Map<string, Set>()

  of(stat: BigIntStats): Times {
    const stored = timesOf(stat)
    const known = this.#set.get(keyOf(stat))
    const atim = known?.stored.atim === stored.atim ? known.wanted.atim : stored.atim
    const mtim = known?.stored.mtim === stored.mtim ? known.wanted.mtim : stored.mtim
    return { atim, mtim }
  }

  /** Sets the wanted times (`now`, nanoseconds, or empty to keep one) and remembers how they were stored. */
  set(
    wanted: { readonly atim: string; readonly mtim: string },
    stat: () => BigIntStats,
    change: (atime: number, mtime: number) => void,
  ): void {
    const before = this.of(stat())
    const now = BigInt(Date.now()) * 1_000_000n
    const one = (text: string, old: bigint): bigint =>
      text === '' ? old : text === 'now' ? now : BigInt(text)
    const times = { atim: one(wanted.atim, before.atim), mtim: one(wanted.mtim, before.mtim) }
    change(Number(times.atim) / 1e9, Number(times.mtim) / 1e9)
    const after = stat()
    if (this.#set.size >= MAX_KEPT) this.#set.clear()
    this.#set.set(keyOf(after), { wanted: times, stored: timesOf(after) })
  }
}

const keyOf = ({ dev, ino }: BigIntStats): string => `${dev}:${ino}`
const timesOf = ({ atimeNs, mtimeNs }: BigIntStats): Times => ({ atim: atimeNs, mtim: mtimeNs })
