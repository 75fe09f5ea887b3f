import type { KeptOutput, OutputBudget } from '../../../supervisor/exec/output-budget.ts'

/** Every mark begins with this character: few programs print it, and JSON cannot contain it. */
export const MARK_START = '\u001e'
/** The longest message of a kernel, in characters. */
export const MESSAGE_CHARACTERS = 16 * 1024 * 1024
/** The overhead of a piece in addition to its characters; a program may print single ones. */
const PIECE_COST = 256
/** A message up to this weight is never dropped because of its own tenant's output. */
const SMALL = 64 * 1024

/** Output of a program, a message of the kernel, or the news that one was dropped: it is too long, or the memory for output is used up. */
export type OutputPart =
  | { readonly kind: 'text' | 'message'; readonly text: string }
  | { readonly kind: 'lost'; readonly isTooLong: boolean }

type Options = { readonly mark: string; readonly budget: OutputBudget; readonly tenant: string }

/**
 * Separates the messages of a kernel, which are lines that begin with a mark, from what programs print. SECURITY: the kernel is
 * the guest's. Each character is looked at once; an unfinished message has a largest size and counts as the tenant's output.
 */
export class KernelOutput implements KeptOutput {
  readonly #options: Options
  /** The end of the text, if it is perhaps the beginning of a mark. */
  #rest = ''
  /** The unfinished message; absent: between messages. */
  #message: string[] | undefined
  #lost: { readonly isTooLong: boolean } | undefined
  weight = 0
  readonly isEnded = false
  readonly isRead = true
  readonly hasSpare = false

  constructor(options: Options) {
    this.#options = options
  }

  /** The parts that this text completes. */
  *push(text: string): Generator<OutputPart, void> {
    const all = this.#rest + text
    this.#rest = ''
    for (let at = 0; at < all.length; ) {
      if (this.#message) at = yield* this.#messageIn(all, at)
      else at = yield* this.#textIn(all, at)
    }
  }

  /** Drops the unfinished message. */
  dropOldest(): void {
    this.#drop({ isTooLong: false })
  }

  /** Forgets the unfinished message. */
  clear(): void {
    this.#message = undefined
    this.#release()
  }

  *#textIn(all: string, from: number): Generator<OutputPart, number> {
    const { mark } = this.#options
    const at = markIn(all, mark, from)
    if (at > from) yield { kind: 'text', text: all.slice(from, at) }
    if (all.length - at < mark.length) {
      this.#rest = all.slice(at)
      return all.length
    }
    this.#message = []
    return at + mark.length
  }

  *#messageIn(all: string, from: number): Generator<OutputPart, number> {
    END.lastIndex = from
    const end = END.exec(all)?.index
    this.#keep(all.slice(from, end))
    if (this.#lost) yield { kind: 'lost', ...this.#lost }
    this.#lost = undefined
    if (end === undefined) return all.length
    const message = this.#message ?? []
    const isWhole = all[end] === '\n' && message[0] !== LOST
    this.clear()
    if (isWhole) yield { kind: 'message', text: message.join('') }
    // A mark in a message begins another one: a program printed the first.
    return all[end] === '\n' ? end + 1 : end
  }

  #keep(piece: string): void {
    if (piece === '' || this.#message?.[0] === LOST) return
    const { budget, tenant } = this.#options
    if (this.weight === 0) budget.add(tenant, this)
    this.#message?.push(piece)
    const weight = piece.length + PIECE_COST
    this.weight += weight
    budget.count(tenant, weight)
    if (this.weight > MESSAGE_CHARACTERS) this.#drop({ isTooLong: true })
    else budget.reclaim(tenant)
    // The other tenants have nothing to drop, or less than this one.
    if (this.weight > SMALL && budget.isOver) this.#drop({ isTooLong: false })
  }

  #drop(lost: { readonly isTooLong: boolean }): void {
    this.#message = [LOST]
    this.#lost = lost
    this.#release()
  }

  #release(): void {
    const { budget, tenant } = this.#options
    if (this.weight === 0) return
    budget.count(tenant, -this.weight)
    budget.remove(tenant, this)
    this.weight = 0
  }
}

const END = /[\n\u001e]/g
/** Stands for a message whose beginning was dropped. */
const LOST = MARK_START

/** Where a mark begins in a text, perhaps at its end with the first characters only. */
function markIn(text: string, mark: string, from: number): number {
  let at = text.indexOf(MARK_START, from)
  while (at !== -1 && !mark.startsWith(text.slice(at, at + mark.length)))
    at = text.indexOf(MARK_START, at + 1)
  return at === -1 ? text.length : at
}
