import type { FuelEmitter } from './fuel-emitter.ts'

/** The kind of block that a label belongs to. */
export const LABEL = { function: 0, block: 1, loop: 2, if: 3, else: 4, try: 5, tryTable: 6 } as const

/** The blocks around the current instruction, outermost first. Parallel arrays, not objects, because code is long. */
export class ControlStack {
  depth = 0
  kind = new Uint8Array(64)
  /** Whether the code is live at the start of the block; if so, the code after its end counts as live too. */
  live = new Uint8Array(64)
  /** Whether a branch has already fixed the fuel owed at this label. */
  fixed = new Uint8Array(64)
  /** Fuel owed (used but not yet charged) on every branch to this label. */
  owed = new Int32Array(64)
  /** Fuel owed at the start of the block; an `if` without `else` reaches its end with this amount. */
  owedAtEntry = new Int32Array(64)
  /** Where the meter's value is held at the start of the block. */
  meterAtEntry = new Uint8Array(64)
  /** Fuel charged but not checked at the start of the block, and the most that is used but not checked at a branch to this label. */
  chargedAtEntry = new Int32Array(64)
  unchecked = new Int32Array(64)

  reset(): void {
    this.depth = 0
  }

  push(kind: number, live: boolean, owed: number, { meterAt, charged }: FuelEmitter): void {
    const index = this.depth++
    if (index === this.kind.length) this.#grow()
    this.kind[index] = kind
    this.live[index] = live ? 1 : 0
    this.fixed[index] = 0
    this.owed[index] = 0
    this.owedAtEntry[index] = owed
    this.meterAtEntry[index] = meterAt
    this.chargedAtEntry[index] = charged
    this.unchecked[index] = 0
  }

  #grow(): void {
    const doubled = <T extends Uint8Array | Int32Array>(from: T, to: T): T => {
      to.set(from)
      return to
    }
    const size = this.kind.length * 2
    this.kind = doubled(this.kind, new Uint8Array(size))
    this.live = doubled(this.live, new Uint8Array(size))
    this.fixed = doubled(this.fixed, new Uint8Array(size))
    this.owed = doubled(this.owed, new Int32Array(size))
    this.owedAtEntry = doubled(this.owedAtEntry, new Int32Array(size))
    this.meterAtEntry = doubled(this.meterAtEntry, new Uint8Array(size))
    this.chargedAtEntry = doubled(this.chargedAtEntry, new Int32Array(size))
    this.unchecked = doubled(this.unchecked, new Int32Array(size))
  }

  /** Fixes the fuel owed at a label, for every branch to it. */
  fix(index: number, owed: number): void {
    this.fixed[index] = 1
    this.owed[index] = owed
  }

  /** A branch leads to this label; one back to a loop is checked. */
  reach(index: number, unchecked: number): void {
    if (this.kind[index] === LABEL.loop) return
    this.unchecked[index] = Math.max(this.unchecked[index] as number, unchecked)
  }

  /** The most that is used but not checked at the end of a block; the path through an `if` without `else` is one to it. */
  uncheckedAtEnd(index: number): number {
    const skipped =
      this.kind[index] === LABEL.if
        ? (this.chargedAtEntry[index] as number) + (this.owedAtEntry[index] as number)
        : 0
    return Math.max(skipped, this.unchecked[index] as number)
  }

  /** Fuel that must be owed at the end of a block because other paths reach it with that amount; -1 if there are none. */
  owedAtEnd(index: number): number {
    const kind = this.kind[index]
    if (kind === LABEL.loop) return -1
    if (kind === LABEL.try) return 0
    if (this.fixed[index]) return this.owed[index] as number
    return kind === LABEL.if ? (this.owedAtEntry[index] as number) : -1
  }

  /** Fuel that a branch to this label must owe; -1 if it is the first branch and may choose. */
  owedByBranch(index: number): number {
    return this.kind[index] === LABEL.loop ? (this.owed[index] as number) : this.owedAtEnd(index)
  }
}
