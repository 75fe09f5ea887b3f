import { SandboxError } from '../model/errors.ts'
import { ByteReader, ByteWriter } from './bytes.ts'
import { ControlStack, LABEL } from './control-stack.ts'
import { type FunctionType, valueType } from './decode.ts'
import { FuelEmitter, PLACE, WORK } from './fuel-emitter.ts'
import { BULK, COSTS, IMM, IMMEDIATES, isOrdinary, OP, refusedOpcode, unsupportedFeature } from './opcodes.ts'

/** What all functions of a module share. */
export type CodeContext = {
  readonly bytes: Uint8Array
  readonly meterGlobal: number
  /** The index of a type `() -> results of that type`, made when first asked for. */
  readonly resultsOnly: (type: FunctionType) => number
}

/** Short functions without loops and calls are charged once; they overrun a budget by at most this. */
const LEAF_BYTES = 512
// PLATFORM: the engines' own limit.
const MAX_LOCALS = 50_000

const ORDINARY = Uint8Array.from({ length: 256 }, (_, op) => (isOrdinary(op) ? 1 : 0))

/**
 * Rewrites function bodies one by one. Instructions are copied in spans; charges are written between them,
 * only where paths with different amounts meet.
 */
export class FunctionMeter {
  readonly #context: CodeContext
  readonly #reader: ByteReader
  readonly #fuel: FuelEmitter
  readonly #stack = new ControlStack()
  readonly #head = new ByteWriter()
  /** Where the current instruction begins, and up to where the source is copied. */
  #opAt = 0
  #copied = 0
  #live = true
  #loops = 0
  /** May labels carry debt? Not where a branch table meets labels that disagree. */
  #defer = true
  #conflict = false
  /** Set when an exception handler is met while debt may ride across calls: start over with `ride` 0. */
  needsExactCalls = false

  constructor(context: CodeContext, ride: number) {
    this.#context = context
    this.#reader = new ByteReader(context.bytes)
    this.#fuel = new FuelEmitter(context.meterGlobal)
    this.#fuel.ride = ride
  }

  /** Rewrites the body between `start` and `end` and appends it, with its size, to `out`. */
  rewrite(type: FunctionType, start: number, end: number, out: ByteWriter): void {
    this.#defer = true
    if (!this.#attempt(type, start, end, out)) {
      this.#defer = false
      this.#attempt(type, start, end, out)
    }
  }

  #attempt(type: FunctionType, start: number, end: number, out: ByteWriter): boolean {
    const reader = this.#reader
    reader.at = start
    const locals = this.#skipLocals()
    const bodyAt = reader.at
    this.#fuel.begin(type.params.length + locals)
    this.#stack.reset()
    this.#stack.push(LABEL.function, true, 0, PLACE.local)
    this.#live = true
    this.#loops = 0
    this.#conflict = false
    this.#copied = bodyAt
    while (reader.at < end) {
      this.#step()
      if (this.#conflict || this.needsExactCalls) return this.needsExactCalls
    }
    if (this.#stack.depth !== 0) throw new SandboxError('invalid-input', 'a function has no end')
    this.#finish(type, start, bodyAt, end, out)
    return true
  }

  #skipLocals(): number {
    const groups = this.#reader.u32()
    let count = 0
    for (let index = 0; index < groups; index++) {
      count += this.#reader.u32()
      if (count > MAX_LOCALS) throw new SandboxError('invalid-input', 'a function has too many locals')
      valueType(this.#reader)
    }
    return count
  }

  /** Copies the source up to the current instruction, so that code can be written before it. */
  #sync(): void {
    this.#fuel.code.span(this.#context.bytes, this.#copied, this.#opAt)
    this.#copied = this.#opAt
  }

  /** Copies the current instruction too, so that code can be written behind it. */
  #syncPast(): void {
    this.#opAt = this.#reader.at
    this.#sync()
  }

  #step(): void {
    const reader = this.#reader
    this.#opAt = reader.at
    const op = reader.u8()
    this.#skipImmediates(op)
    if (ORDINARY[op]) {
      if (this.#live) this.#fuel.pending += COSTS[op] as number
      return
    }
    if (op === OP.prefixBulk) this.#bulk(reader.u32())
    else if (op === OP.prefixSimd) this.#simd(reader.u32())
    else this.#control(op)
  }

  #skipImmediates(op: number): void {
    const reader = this.#reader
    switch (IMMEDIATES[op]) {
      case IMM.none:
      case IMM.prefix:
      case IMM.branchTable:
        return
      case IMM.number:
        return reader.skipNumber()
      case IMM.blockType:
        return this.#skipBlockType()
      case IMM.twoNumbers:
        reader.skipNumber()
        return reader.skipNumber()
      case IMM.memory:
        return this.#skipMemoryArgument()
      case IMM.four:
        reader.at += 4
        return
      case IMM.eight:
        reader.at += 8
        return
      case IMM.types:
        for (let count = reader.u32(); count > 0; count--) valueType(reader)
        return
      default:
        throw refusedOpcode(op)
    }
  }

  #skipBlockType(): void {
    const first = this.#reader.bytes[this.#reader.at]
    if (first === 0x63 || first === 0x64) throw unsupportedFeature('typed references')
    this.#reader.skipNumber()
  }

  #skipMemoryArgument(): void {
    if ((this.#reader.u32() & 0x40) !== 0) throw unsupportedFeature('multiple memories')
    this.#reader.skipNumber()
  }

  /** The first immediate of the current instruction, which was already stepped over. */
  #operand(): number {
    const { at } = this.#reader
    this.#reader.at = this.#opAt + 1
    const value = this.#reader.u32()
    this.#reader.at = at
    return value
  }

  #control(op: number): void {
    switch (op) {
      case OP.nop:
        return
      case OP.block:
        return this.#push(LABEL.block)
      case OP.loop:
        return this.#loop()
      case OP.if:
        return this.#if()
      case OP.else:
        return this.#else()
      case OP.end:
        return this.#end()
      case OP.try:
      case OP.catch:
      case OP.catchAll:
      case OP.delegate:
        return this.#handler(op)
      case OP.brTable:
        return this.#branchTable()
      default:
        if (this.#live) this.#act(op)
    }
  }

  /** Instructions that leave the straight line or need a charge of their own; the code here is live. */
  #act(op: number): void {
    const fuel = this.#fuel
    fuel.pending += COSTS[op] as number
    this.#sync()
    switch (op) {
      case OP.unreachable:
        fuel.beforeExit()
        return this.#stop()
      case OP.throw:
      case OP.rethrow:
        fuel.chargeWork(WORK.throw, this.#stack.depth)
        fuel.beforeExit()
        return this.#stop()
      case OP.br:
        this.#branchTo(this.#operand())
        return this.#stop()
      case OP.brIf:
        return this.#branchTo(this.#operand())
      case OP.return:
        return this.#return()
      case OP.call:
      case OP.callIndirect:
        return fuel.beforeCall()
      case OP.returnCall:
      case OP.returnCallIndirect:
        fuel.beforeTailCall()
        return this.#stop()
      case OP.tableGet:
      case OP.tableSet:
        return fuel.chargeWork(WORK.tableElement, this.#stack.depth)
      case OP.memoryGrow:
        return this.#grow()
      default:
        throw refusedOpcode(op)
    }
  }

  /** Growth is charged when it is known to have happened, as Wasmtime does. */
  #grow(): void {
    this.#fuel.beforeGrow(this.#stack.depth)
    this.#syncPast()
    this.#fuel.afterGrow(this.#stack.depth)
  }

  #stop(): void {
    this.#live = false
    this.#fuel.pending = 0
  }

  #push(kind: number): void {
    this.#stack.push(kind, this.#live, this.#fuel.pending, this.#fuel.place)
  }

  #loop(): void {
    if (!this.#live) return this.#push(LABEL.loop)
    this.#loops++
    this.#sync()
    this.#fuel.settle(0)
    this.#push(LABEL.loop)
    this.#syncPast()
    this.#fuel.check(this.#stack.depth)
  }

  #if(): void {
    if (this.#live) {
      this.#fuel.pending += 1
      this.#sync()
      this.#fuel.settle(this.#defer ? this.#fuel.pending : 0)
    }
    this.#push(LABEL.if)
  }

  #else(): void {
    const stack = this.#stack
    const index = stack.depth - 1
    if (this.#live) {
      this.#sync()
      this.#fuel.settle(
        stack.fixed[index] ? (stack.owed[index] as number) : this.#defer ? this.#fuel.pending : 0,
      )
      stack.fixed[index] = 1
      stack.owed[index] = this.#fuel.pending
    }
    stack.kind[index] = LABEL.else
    this.#live = stack.live[index] === 1
    this.#fuel.pending = this.#live ? (stack.owedAtEntry[index] as number) : 0
    this.#fuel.place = stack.placeAtEntry[index] as number
  }

  #end(): void {
    const stack = this.#stack
    const fuel = this.#fuel
    const index = stack.depth - 1
    if (index === 0) {
      this.#sync()
      stack.depth = 0
      return
    }
    const owed = this.#arrivesWith(index)
    if (owed >= 0) {
      if (this.#live) {
        this.#sync()
        fuel.settle(owed)
      }
      fuel.pending = owed
      fuel.place = PLACE.local
    } else if (!this.#live) {
      fuel.pending = 0
      fuel.place = PLACE.local
    }
    stack.depth--
    // Code behind a block counts as live when its beginning was, though nothing may reach it: never unmetered.
    this.#live = stack.live[index] === 1
    if (!this.#live) fuel.pending = 0
  }

  /** What must be owed at the end of a block because other paths arrive with it; -1 when none does. */
  #arrivesWith(index: number): number {
    const kind = this.#stack.kind[index]
    if (kind === LABEL.loop) return -1
    if (kind === LABEL.try) return 0
    if (this.#stack.fixed[index]) return this.#stack.owed[index] as number
    return kind === LABEL.if ? (this.#stack.owedAtEntry[index] as number) : -1
  }

  /** What a branch to this label must owe; -1 when this branch is the first and may choose. */
  #owedAt(index: number): number {
    const { kind, fixed, owed, owedAtEntry } = this.#stack
    if (!this.#defer || kind[index] === LABEL.loop || kind[index] === LABEL.try) return 0
    if (fixed[index]) return owed[index] as number
    return kind[index] === LABEL.if ? (owedAtEntry[index] as number) : -1
  }

  #fix(index: number): void {
    this.#stack.fixed[index] = 1
    this.#stack.owed[index] = this.#fuel.pending
  }

  #branchTo(label: number): void {
    const index = this.#stack.depth - 1 - label
    const owed = this.#owedAt(index)
    this.#fuel.settle(owed < 0 ? this.#fuel.pending : owed)
    this.#fix(index)
  }

  /** A return becomes a branch to the end, where the frame is given back. */
  #return(): void {
    const outermost = this.#stack.depth - 1
    this.#branchTo(outermost)
    this.#fuel.code.u8(OP.br)
    this.#fuel.code.u32(outermost)
    this.#copied = this.#reader.at
    this.#stop()
  }

  #branchTable(): void {
    const reader = this.#reader
    const count = reader.u32() + 1
    const targetsAt = reader.at
    let owed = -1
    for (let left = count; left > 0; left--) {
      const target = this.#stack.depth - 1 - reader.u32()
      const wanted = this.#live ? this.#owedAt(target) : -1
      if (wanted >= 0 && owed >= 0 && wanted !== owed) this.#conflict = true
      if (wanted >= 0) owed = wanted
    }
    if (!this.#live || this.#conflict) return
    this.#fuel.pending += 1
    this.#sync()
    this.#fuel.settle(owed < 0 ? this.#fuel.pending : owed)
    const past = reader.at
    reader.at = targetsAt
    for (let left = count; left > 0; left--) this.#fix(this.#stack.depth - 1 - reader.u32())
    reader.at = past
    this.#stop()
  }

  #handler(op: number): void {
    const fuel = this.#fuel
    if (op === OP.try && fuel.ride > 0) {
      this.needsExactCalls = true
      return
    }
    if (this.#live) {
      if (op === OP.try) fuel.pending += 1
      this.#sync()
      fuel.settle(0)
    }
    if (op === OP.try) return this.#push(LABEL.try)
    const index = this.#stack.depth - 1
    this.#live = this.#stack.live[index] === 1
    fuel.pending = 0
    fuel.place = PLACE.local
    if (op === OP.delegate) {
      this.#stack.depth--
    } else if (this.#live) {
      this.#syncPast()
      fuel.resync()
    }
  }

  #bulk(op: number): void {
    const reader = this.#reader
    if (op > BULK.tableFill) throw unsupportedFeature(`the unknown instruction 0xfc ${op}`)
    if (op >= BULK.memoryInit) reader.skipNumber()
    if (op === BULK.memoryInit || op === BULK.memoryCopy || op === BULK.tableInit || op === BULK.tableCopy) {
      reader.skipNumber()
    }
    if (!this.#live) return
    this.#fuel.pending += 1
    if (op < BULK.memoryInit || op === BULK.dataDrop || op === BULK.elemDrop || op === BULK.tableSize) return
    this.#sync()
    if (op === BULK.tableGrow) this.#grow()
    else this.#fuel.chargeLength(this.#stack.depth)
    if (op >= BULK.tableInit) this.#fuel.chargeWorkForLength(WORK.tableElement, this.#stack.depth)
  }

  #simd(op: number): void {
    const reader = this.#reader
    if (op > 0xff) throw unsupportedFeature('relaxed SIMD')
    if (op <= 11 || op === 92 || op === 93) this.#skipMemoryArgument()
    else if (op === 12 || op === 13) reader.at += 16
    else if (op >= 21 && op <= 34) reader.at += 1
    else if (op >= 84 && op <= 91) {
      this.#skipMemoryArgument()
      reader.at += 1
    }
    if (this.#live) this.#fuel.pending += 1
  }

  #finish(type: FunctionType, start: number, bodyAt: number, end: number, out: ByteWriter): void {
    const fuel = this.#fuel
    const wrapped = this.#stack.fixed[0] === 1
    if (wrapped) {
      if (this.#live) fuel.settle(this.#stack.owed[0] as number)
      fuel.pending = this.#stack.owed[0] as number
      fuel.place = PLACE.local
    } else if (!this.#live) {
      fuel.pending = 0
      fuel.place = PLACE.local
    }
    this.#head.reset()
    const leaf = !fuel.needsFrame && fuel.calls === 0 && this.#loops === 0 && end - bodyAt <= LEAF_BYTES
    if (leaf) this.#finishLeaf(type, start, bodyAt, wrapped)
    else this.#finishFrame(type, start, bodyAt)
    fuel.code.u8(OP.end)
    out.u32(this.#head.length + fuel.code.length)
    out.append(this.#head)
    out.append(fuel.code)
  }

  /** The original locals and ours behind them, so that no index moves. */
  #locals(start: number, bodyAt: number, ours: readonly number[]): void {
    const reader = new ByteReader(this.#context.bytes, start)
    this.#head.u32(reader.u32() + ours.length)
    this.#head.span(this.#context.bytes, reader.at, bodyAt)
    for (const type of ours) this.#head.all([1, type])
  }

  #blockOf(type: FunctionType): void {
    this.#head.u8(OP.block)
    const [only] = type.results
    if (only === undefined) this.#head.u8(0x40)
    else if (type.results.length === 1) this.#head.u8(only)
    else this.#head.signed(this.#context.resultsOnly(type))
  }

  #finishLeaf(type: FunctionType, start: number, bodyAt: number, wrapped: boolean): void {
    const fuel = this.#fuel
    this.#locals(start, bodyAt, fuel.charges > 0 ? [0x7e] : [])
    if (!wrapped && fuel.charges === 0) return fuel.chargeUpFront(this.#head)
    if (wrapped) {
      this.#blockOf(type)
      fuel.code.u8(OP.end)
    }
    fuel.chargeGathered()
  }

  #finishFrame(type: FunctionType, start: number, bodyAt: number): void {
    const fuel = this.#fuel
    this.#locals(start, bodyAt, fuel.needsScratch ? [0x7e, 0x7f, 0x7f] : [0x7e])
    this.#head.all([OP.block, 0x40])
    fuel.enter(this.#head)
    this.#blockOf(type)
    fuel.code.u8(OP.end)
    fuel.leave()
    fuel.code.all([OP.return, OP.end])
    fuel.trap()
  }
}
