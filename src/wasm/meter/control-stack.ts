/** What kind of block a label belongs to. */
export const LABEL = { function: 0, block: 1, loop: 2, if: 3, else: 4, try: 5 } as const

/** The blocks around the current instruction, outermost first. Columns instead of objects: code is long. */
export class ControlStack {
  depth = 0
  kind = new Uint8Array(64)
  /** Was the code live where the block begins? Then what follows its end counts as live too. */
  live = new Uint8Array(64)
  /** Has some branch already settled what is owed at this label? */
  fixed = new Uint8Array(64)
  /** Fuel owed, not yet charged, where branches to this label arrive. */
  owed = new Int32Array(64)
  /** Fuel owed where the block begins: what the missing `else` of an `if` arrives with. */
  owedAtEntry = new Int32Array(64)
  /** Where the meter's value is held at the beginning. */
  placeAtEntry = new Uint8Array(64)

  reset(): void {
    this.depth = 0
  }

  push(kind: number, live: boolean, owed: number, place: number): void {
    const index = this.depth++
    if (index === this.kind.length) this.#grow()
    this.kind[index] = kind
    this.live[index] = live ? 1 : 0
    this.fixed[index] = 0
    this.owed[index] = 0
    this.owedAtEntry[index] = owed
    this.placeAtEntry[index] = place
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
    this.placeAtEntry = doubled(this.placeAtEntry, new Uint8Array(size))
  }

  /** Fixes what is owed at a label: a branch arrives there with it. */
  fix(index: number, owed: number): void {
    this.fixed[index] = 1
    this.owed[index] = owed
  }

  /** What must be owed at the end of a block because other paths arrive with it; -1 when none does. */
  owedAtEnd(index: number): number {
    const kind = this.kind[index]
    if (kind === LABEL.loop) return -1
    if (kind === LABEL.try) return 0
    if (this.fixed[index]) return this.owed[index] as number
    return kind === LABEL.if ? (this.owedAtEntry[index] as number) : -1
  }

  /** What a branch to this label must owe; -1 when it is the first and may choose. */
  owedByBranch(index: number): number {
    return this.kind[index] === LABEL.loop ? 0 : this.owedAtEnd(index)
  }
}
