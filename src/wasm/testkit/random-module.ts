import { buildModule, type Code, type FunctionSpec, I32, I64, op } from './module-builder.ts'

/** Small pseudo-random numbers from a seed, the same on every machine. */
export class Dice {
  #state: number

  constructor(seed: number) {
    this.#state = seed | 1
  }

  below(limit: number): number {
    this.#state ^= this.#state << 13
    this.#state ^= this.#state >>> 17
    this.#state ^= this.#state << 5
    return (this.#state >>> 0) % limit
  }

  chance(percent: number): boolean {
    return this.below(100) < percent
  }
}

const LOCALS = 4
const COUNT: readonly number[] = [0x23, 0, 0x42, 1, 0x7c, 0x24, 0]

/** A function of a random module: its index, the number of functions, and whether the module handles exceptions. */
type Place = { readonly self: number; readonly functions: number; readonly catches: boolean }

/** A random body in two versions: plain, and with a counter before every instruction that costs fuel. */
class BodyWriter {
  readonly plain: (readonly number[])[] = []
  readonly counted: (readonly number[])[] = [COUNT]
  readonly #dice: Dice
  readonly #functions: number
  readonly #self: number
  #labels: ('block' | 'loop')[] = []
  #left = 60
  readonly #catches: boolean

  constructor(dice: Dice, { self, functions, catches }: Place) {
    this.#dice = dice
    this.#self = self
    this.#functions = functions
    this.#catches = catches
  }

  #free(bytes: readonly number[]): void {
    this.plain.push(bytes)
    this.counted.push(bytes)
  }

  #cost(bytes: readonly number[], units = 1): void {
    this.plain.push(bytes)
    for (let unit = 0; unit < units; unit++) this.counted.push(COUNT)
    this.counted.push(bytes)
  }

  #local(): number {
    return this.#dice.below(LOCALS)
  }

  /** Emits code that leaves one i32 on the stack. */
  value(depth = 0): void {
    const kind = depth > 3 ? this.#dice.below(2) : this.#dice.below(6)
    if (kind === 0) this.#cost(op.i32(this.#dice.below(5)))
    else if (kind < 3) this.#cost(op.get(this.#local()))
    else if (kind === 3) {
      this.value(depth + 1)
      this.value(depth + 1)
      this.#cost([[0x6a, 0x6b, 0x71, 0x72, 0x73, 0x48][this.#dice.below(6)] as number])
    } else if (kind === 4) {
      this.value(depth + 1)
      this.#call()
    } else {
      this.#cost(op.i32(this.#dice.below(64)))
      this.#cost(op.load8(0))
    }
  }

  /** Calls mostly later functions, so that most programs end; sometimes any function. */
  #call(): void {
    const later = this.#functions - this.#self - 1
    if (this.#dice.chance(4)) this.#callTo(this.#dice.below(this.#functions))
    else if (later > 0) this.#callTo(this.#self + 1 + this.#dice.below(later))
  }

  /** Through the table if the function is in it: the table holds every other function. */
  #callTo(index: number): void {
    if (index % 2 === 0 || this.#dice.chance(40)) {
      this.#cost(op.call(index))
      return
    }
    this.#cost(op.i32((index - 1) / 2))
    this.#cost([0x11, index, 0])
  }

  statements(depth: number): void {
    for (let count = 1 + this.#dice.below(4); count > 0 && this.#left > 0; count--) {
      this.#left--
      this.#statement(depth)
    }
  }

  #statement(depth: number): void {
    const kind = this.#dice.below(depth > 4 ? 5 : 11)
    if (kind < 2) {
      this.value()
      this.#cost(op.set(this.#local()))
    } else if (kind === 2) this.#branch()
    else if (kind === 3) this.#store()
    else if (kind === 4) this.#leave()
    else if (kind === 5) this.#if(depth)
    else if (kind === 6 && this.#catches) this.#try(depth)
    else if (kind < 9) this.#loop(depth)
    else this.#block(depth)
  }

  #branch(): void {
    if (this.#labels.length === 0) return
    const label = (): number => this.#dice.below(this.#labels.length)
    this.value()
    if (this.#dice.chance(70)) this.#cost(op.brIf(label()))
    else {
      const targets = Array.from({ length: 1 + this.#dice.below(3) }, label)
      this.#cost([0x0e, targets.length, ...targets, label()])
    }
  }

  #store(): void {
    this.#cost(op.i32(this.#dice.below(64)))
    if (this.#dice.chance(30)) {
      const length = this.#dice.below(20)
      this.#cost(op.i32(this.#dice.below(9)))
      this.#cost(op.i32(length))
      this.#cost(op.memoryFill, 1 + length)
    } else {
      this.value()
      this.#cost(op.store8(0))
    }
  }

  /** Sometimes returns, sometimes throws to the caller. */
  #leave(): void {
    const kind = this.#dice.below(6)
    if (kind > 2) return
    this.value()
    if (kind === 0) this.#free([0x0f])
    else this.#throwIf()
  }

  #throwIf(): void {
    this.#cost([0x04, 0x40])
    this.#cost(op.throw(0))
    this.#free(op.end)
  }

  #nested(kind: 'block' | 'loop', depth: number): void {
    this.#labels.unshift(kind)
    this.statements(depth + 1)
    this.#labels.shift()
  }

  #if(depth: number): void {
    this.value()
    this.#cost([0x04, 0x40])
    this.#nested('block', depth)
    if (this.#dice.chance(50)) {
      this.#free([0x05])
      this.#nested('block', depth)
    }
    this.#free(op.end)
  }

  #try(depth: number): void {
    this.#cost(op.try)
    this.#nested('block', depth)
    if (this.#dice.chance(30)) {
      this.value()
      this.#throwIf()
    }
    this.#free(op.catchAll)
    this.#nested('block', depth)
    this.#free(op.end)
  }

  /** Loops are mostly bounded by a counter of their own. */
  #loop(depth: number): void {
    const counter = LOCALS + 1 + depth
    this.#cost(op.i32(this.#dice.below(4)))
    this.#cost(op.set(counter))
    // Nothing is owed right after a call, so this is a case of its own.
    if (this.#dice.chance(30)) this.#callAndDrop()
    this.#free(op.loop)
    if (this.#dice.chance(30)) this.#callAndDrop()
    this.#nested('loop', depth)
    if (this.#dice.chance(85)) {
      this.#cost(op.get(counter))
      this.#cost(op.i32(1))
      this.#cost(op.i32Sub)
      this.#cost(op.tee(counter))
      this.#cost(op.i32(0))
      this.#cost([0x4a])
      this.#cost(op.brIf(0))
    }
    this.#free(op.end)
  }

  #callAndDrop(): void {
    this.value()
    this.#call()
    this.#free(op.drop)
  }

  #block(depth: number): void {
    this.#free(op.block)
    this.#nested('block', depth)
    this.#free(op.end)
  }
}

/** A random module, and the same module with a counter (`count`) of the fuel that Wasmtime would charge. */
export function randomModule(seed: number): { readonly plain: Uint8Array; readonly counted: Uint8Array } {
  const dice = new Dice(seed)
  const functions = 2 + dice.below(6)
  const catches = dice.chance(50)
  const sharesTable = dice.chance(30)
  const exported = Array.from({ length: functions }, (_, self) => self === 0 || dice.chance(50))
  const bodies = Array.from({ length: functions }, (_, self) => {
    const writer = new BodyWriter(dice, { self, functions, catches })
    writer.statements(0)
    writer.value()
    return writer
  })
  const module = (pick: (writer: BodyWriter) => Code): Uint8Array =>
    buildModule({
      memory: { min: 1, max: 1 },
      globals: [{ type: I64, mutable: true, value: 0 }],
      tags: [{}],
      table: { min: functions },
      elements: bodies.flatMap((_, index) => (index % 2 === 1 ? [index] : [])),
      functions: bodies.map(
        (writer, index): FunctionSpec => ({
          ...(exported[index] ? { export: `f${index}` } : {}),
          params: [I32],
          results: [I32],
          locals: Array.from({ length: LOCALS + 8 }, () => I32),
          body: pick(writer),
        }),
      ),
      extraExports: [
        { name: 'count', kind: 3, index: 0 },
        ...(sharesTable ? [{ name: 'table', kind: 1, index: 0 }] : []),
      ],
    })
  return { plain: module((writer) => writer.plain), counted: module((writer) => writer.counted) }
}
