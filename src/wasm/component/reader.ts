import { SandboxError } from '../../model/errors.ts'
import { ByteReader } from '../meter/bytes.ts'

/** A component that the decoder cannot read. */
export const invalidComponent = (what: string): SandboxError =>
  new SandboxError('invalid-input', `not a valid component: ${what}`)

/** A part of the component model that is not supported. */
export const unsupportedPart = (what: string): SandboxError =>
  new SandboxError('unsupported', `the component uses ${what}, which is not supported`)

/** Deeper components and types are refused: they are decoded recursively. */
const MAX_DEPTH = 32
const MAX_ENTRIES = 100_000

/** A budget shared by all readers of one component. */
export type DecodeBudget = { entries: number }

/** Reads a component. SECURITY: no engine validates components, so every read checks the end. */
export class ComponentReader extends ByteReader {
  readonly end: number
  readonly depth: number
  readonly #budget: DecodeBudget

  constructor(bytes: Uint8Array, at: number, end: number, depth: number, budget: DecodeBudget) {
    super(bytes, at)
    if (end > bytes.length) throw invalidComponent('it is cut off')
    if (depth > MAX_DEPTH) throw unsupportedPart(`more than ${MAX_DEPTH} levels of nesting`)
    this.end = end
    this.depth = depth
    this.#budget = budget
  }

  get done(): boolean {
    return this.at >= this.end
  }

  /** A reader of the next bytes, one level deeper. */
  inner(length: number): ComponentReader {
    this.#spend(1)
    const start = this.at
    this.at += length
    if (this.at > this.end) throw invalidComponent('it is cut off')
    return new ComponentReader(this.bytes, start, this.at, this.depth + 1, this.#budget)
  }

  override u8(): number {
    if (this.at >= this.end) throw invalidComponent('it is cut off')
    return super.u8()
  }

  override u32(): number {
    const value = super.u32()
    if (this.at > this.end) throw invalidComponent('it is cut off')
    return value
  }

  list<T>(item: () => T): readonly T[] {
    const count = this.u32()
    this.#spend(count)
    return Array.from({ length: count }, item)
  }

  /** SECURITY: components are decoded in the host's thread, so their number of entries and sections is limited. */
  #spend(entries: number): void {
    this.#budget.entries -= entries
    if (this.#budget.entries < 0) throw unsupportedPart(`more than ${MAX_ENTRIES} entries`)
  }

  option<T>(item: () => T): T | undefined {
    return this.u8() === 0 ? undefined : item()
  }

  override text(): string {
    const length = this.u32()
    const start = this.at
    this.at += length
    if (this.at > this.end) throw invalidComponent('it is cut off')
    try {
      return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(
        this.bytes.subarray(start, this.at),
      )
    } catch {
      throw invalidComponent('a name is not UTF-8')
    }
  }
}

/** A budget for one component. */
export const decodeBudget = (): DecodeBudget => ({ entries: MAX_ENTRIES })
