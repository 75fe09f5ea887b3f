import { SandboxError } from '../../model/errors.ts'
import { tableTargets } from './branch-tables.ts'
import { ByteReader, type ByteWriter } from './bytes.ts'
import { chargeObjects, EXCEPTION_BYTES, hasOwnCharge, isWideLength } from './charges.ts'
import { ControlStack, LABEL } from './control-stack.ts'
import { FuelEmitter, METER_AT, WORK_COST } from './fuel-emitter.ts'
import { type CodeContext, writeFunction } from './function-frame.ts'
import {
  skipBulkImmediates,
  skipGcImmediates,
  skipImmediates,
  skipLocals,
  skipSimdImmediates,
} from './immediates.ts'
import { BULK, COSTS, GC, isOrdinary, OP, refusedOpcode } from './opcodes.ts'
import { type FunctionType, skipBlockType } from './types.ts'

const NONE: ReadonlySet<number> = new Set()

/** Instructions that are copied: 1, or 2 if they may have to be changed. */
const ORDINARY = Uint8Array.from({ length: 256 }, (_, op) => (isOrdinary(op) ? 1 : 0))
for (const op of [OP.localGet, OP.localSet, OP.localTee, OP.refFunc]) ORDINARY[op] = 2

/** Fuel that may be owed at the start of a loop without being charged there; it delays the end of the run by this amount. */
const MAX_OWED_AT_LOOP = 64

/**
 * Fuel that code without a check may use, with a short function for each call: after a recursion, every frame goes on from its call
 * without passing a check of its own.
 */
const MAX_UNCHECKED = 8192

/** A function to rewrite: its type, whether it takes and returns the meter, and where its code is. */
export type FunctionSource = {
  readonly type: FunctionType
  readonly passed: boolean
  readonly isShared: boolean
  readonly start: number
  readonly end: number
}

/**
 * Rewrites function bodies one at a time. Instructions are copied in spans; charges are inserted between them, only
 * where paths with different amounts meet.
 */
export class FunctionMeter {
  readonly #context: CodeContext
  readonly #reader: ByteReader
  readonly #fuel: FuelEmitter
  readonly #stack = new ControlStack()
  /** Start of the current instruction, and the end of the source copied so far. */
  #opAt = 0
  #copied = 0
  #live = true
  #loops = 0
  /** Labels at which nothing may be owed, by number: set when the targets of a branch table require different amounts. */
  #settled: ReadonlySet<number> = NONE
  #conflict = false
  /** The number of blocks that were opened. */
  #opened = 0
  /**
   * Set for functions with `try_table`, whose handlers are labels: every path to a label writes the fuel to the global, and
   * the code behind a label reads it from there, because an exception may have arrived with less.
   */
  #catches = false
  /** Whether a `try_table` was found: its handlers can keep exceptions as values. */
  seesTryTable = false
  /** Set when a handler is found while fuel may be owed across calls: the rewrite starts over with `ride` 0. */
  needsExactCalls = false

  /** Whether a tail call was found. */
  tailCalls = false
  /** Whether an instruction was found that creates a reference to a function or moves one into or out of a table. */
  movesReferences = false
  #passed = false
  /** The local whose index the passed meter has, and its new index; -1 if there is none. */
  #movedFrom = -1
  #movedTo = 0

  constructor(context: CodeContext, ride: number) {
    this.#context = context
    this.#reader = new ByteReader(context.bytes)
    this.#fuel = new FuelEmitter(context.meterGlobal)
    this.#fuel.maxDeferred = ride
  }

  /** The number of reachable loops in the last function. */
  get loops(): number {
    return this.#loops
  }

  /** Rewrites a body and appends it, with its size, to `out`. */
  rewrite(source: FunctionSource, out: ByteWriter): void {
    this.#settled = NONE
    this.#catches = false
    while (!this.#attempt(source, out));
  }

  #attempt(source: FunctionSource, out: ByteWriter): boolean {
    const { type, passed, start, end } = source
    const reader = this.#reader
    reader.at = start
    const locals = skipLocals(reader)
    const bodyAt = reader.at
    const params = type.params.length
    this.#passed = passed
    this.#movedFrom = passed && locals > 0 ? params : -1
    this.#movedTo = params + locals
    this.#fuel.begin({
      passed,
      fuelLocal: passed ? params : params + locals,
      scratchLocal: params + locals + 1,
    })
    this.#stack.reset()
    this.#opened = -1
    this.#live = true
    this.#open(LABEL.function, 0)
    this.#loops = 0
    this.#conflict = false
    this.#copied = bodyAt
    while (reader.at < end) {
      this.#step()
      if (this.needsExactCalls) return true
      if (this.#conflict) {
        if (this.#settled === NONE) this.#settled = tableTargets(this.#context.bytes, bodyAt, end)
        return false
      }
    }
    if (this.#stack.depth !== 0) throw new SandboxError('invalid-input', 'a function has no end')
    this.#settleEnd()
    const wrapped = this.#stack.fixed[0] === 1
    const shape = { ...source, wrapped, loops: this.#loops, caught: this.#catches, bodyAt }
    writeFunction(this.#context, this.#fuel, shape, out)
    return true
  }

  /** Copies the source up to the current instruction, so that code can be inserted before it. */
  #sync(): void {
    this.#fuel.code.span(this.#context.bytes, this.#copied, this.#opAt)
    this.#copied = this.#opAt
  }

  /** Copies the current instruction too, so that code can be inserted after it. */
  #syncPast(): void {
    this.#opAt = this.#reader.at
    this.#sync()
  }

  #step(): void {
    const reader = this.#reader
    this.#opAt = reader.at
    if (this.#live && this.#fuel.unchecked > MAX_UNCHECKED) this.#checkHere()
    const op = reader.u8()
    skipImmediates(reader, op)
    const ordinary = ORDINARY[op]
    if (ordinary) {
      if (this.#live) this.#fuel.pending += COSTS[op] as number
      if (ordinary === 2) {
        if (op === OP.refFunc) this.movesReferences = true
        else if (this.#movedFrom >= 0) this.#local(op)
      }
      return
    }
    if (op === OP.prefixBulk) this.#bulk(skipBulkImmediates(reader))
    else if (op === OP.prefixGc) this.#gc(skipGcImmediates(reader))
    else if (op === OP.prefixSimd) {
      skipSimdImmediates(reader)
      if (this.#live) this.#fuel.pending += 1
    } else this.#control(op)
  }

  #checkHere(): void {
    this.#sync()
    this.#fuel.settle(0)
    this.#fuel.check(this.#stack.depth)
  }

  /** A number of the current instruction, which the reader has already passed; 0 is the one after the opcode's first byte. */
  #operand(position = 0): number {
    const { at } = this.#reader
    this.#reader.at = this.#opAt + 1
    for (let skipped = 0; skipped < position; skipped++) this.#reader.skipNumber()
    const value = this.#reader.u32()
    this.#reader.at = at
    return value
  }

  /** SECURITY: no instruction of the module may access the local that holds the meter. */
  #local(op: number): void {
    if (this.#operand() !== this.#movedFrom) return
    this.#sync()
    this.#fuel.code.u8(op)
    this.#fuel.code.u32(this.#movedTo)
    this.#copied = this.#reader.at
  }

  #control(op: number): void {
    switch (op) {
      case OP.nop:
        break
      case OP.block:
        this.#push(LABEL.block)
        break
      case OP.loop:
        this.#loop()
        break
      case OP.if:
        this.#if()
        break
      case OP.else:
        this.#else()
        break
      case OP.end:
        this.#end()
        break
      case OP.try:
      case OP.catch:
      case OP.catchAll:
      case OP.delegate:
        this.#handler(op)
        break
      case OP.tryTable:
        this.#tryTable()
        break
      case OP.brTable:
        this.#branchTable()
        break
      case OP.return:
        this.#return()
        break
      case OP.call:
        this.#call()
        break
      case OP.returnCall:
      case OP.returnCallIndirect:
      case OP.returnCallRef:
        this.#tailCall(op)
        break
      default:
        if (this.#live) this.#act(op)
    }
  }

  /** Control-flow instructions and instructions with their own charge; called only for live code. */
  #act(op: number): void {
    const fuel = this.#fuel
    fuel.pending += COSTS[op] as number
    this.#sync()
    switch (op) {
      case OP.unreachable:
        fuel.beforeExit()
        this.#stop()
        break
      case OP.throw:
      case OP.rethrow:
      case OP.throwRef:
        fuel.chargeWork(WORK_COST.throw, this.#stack.depth)
        if (this.#context.keepsExceptions) fuel.chargeObject(EXCEPTION_BYTES, this.#stack.depth)
        fuel.beforeExit()
        this.#stop()
        break
      case OP.br:
        this.#branchTo(this.#operand())
        this.#stop()
        break
      case OP.brIf:
      case OP.brOnNull:
      case OP.brOnNonNull:
        this.#branchTo(this.#operand())
        break
      case OP.callIndirect:
        this.#callIndirect()
        break
      case OP.callRef:
        fuel.beforeCall()
        break
      case OP.tableGet:
      case OP.tableSet:
        this.movesReferences = true
        fuel.chargeWork(WORK_COST.tableElement, this.#stack.depth)
        break
      case OP.memoryGrow:
        this.#grow(this.#context.wideMemories[this.#operand()] === true)
        break
      default:
        throw refusedOpcode(op)
    }
  }

  #call(): void {
    const { importedFunctions, passing } = this.#context
    const fuel = this.#fuel
    const passed = passing.passes[this.#operand() - importedFunctions] === 1
    if (!this.#live) {
      if (passed) this.#deadPassedCall()
      return
    }
    this.#sync()
    fuel.pending += COSTS[OP.call] as number
    if (!passed) {
      fuel.beforeCall()
      return
    }
    fuel.beforePassedCall()
    this.#syncPast()
    fuel.afterPassedCall()
  }

  #callIndirect(): void {
    const { passing, passingType } = this.#context
    const fuel = this.#fuel
    if (!passing.tables) {
      fuel.beforeCall()
      return
    }
    fuel.beforePassedCallIndirect()
    fuel.code.u8(OP.callIndirect)
    fuel.code.u32(passingType(this.#operand()))
    fuel.code.u32(this.#operand(1))
    this.#copied = this.#reader.at
    fuel.afterPassedCall()
  }

  /** Code that is never reached must be valid too. */
  #deadPassedCall(): void {
    this.#sync()
    this.#fuel.constant(0)
    this.#syncPast()
    this.#fuel.code.u8(OP.drop)
  }

  /** The results of the two functions must be the same, so in a module with tail calls no function returns the meter. */
  #tailCall(op: number): void {
    this.tailCalls = true
    if (!this.#live) return
    this.#sync()
    this.#fuel.pending += COSTS[op] as number
    this.#fuel.beforeTailCall()
    this.#stop()
  }

  /** Growth is charged after it has succeeded, as in Wasmtime. */
  #grow(wide: boolean): void {
    this.#fuel.beforeGrow(this.#stack.depth, wide)
    this.#syncPast()
    this.#fuel.afterGrow(this.#stack.depth, wide)
  }

  #stop(): void {
    this.#live = false
    this.#fuel.pending = 0
  }

  #push(kind: number): void {
    this.#open(kind, this.#fuel.pending)
  }

  #open(kind: number, owed: number): void {
    this.#stack.push(kind, this.#live, owed, this.#fuel)
    if (this.#settled.has(++this.#opened)) this.#stack.fix(this.#stack.depth - 1, 0)
  }

  #loop(): void {
    if (!this.#live) {
      this.#push(LABEL.loop)
      return
    }
    this.#loops++
    this.#sync()
    const { pending } = this.#fuel
    const settles = pending > MAX_OWED_AT_LOOP || this.#settled.has(this.#opened + 1)
    this.#settleAtLabel(settles ? 0 : pending)
    // SECURITY: a branch back has charged only the local, so the global is not current at the start of an iteration.
    this.#fuel.meterAt = METER_AT.local
    this.#push(LABEL.loop)
    this.#stack.fix(this.#stack.depth - 1, this.#fuel.pending)
    if (!this.#catches) return
    this.#syncPast()
    this.#fuel.resync()
    this.#fuel.check(this.#stack.depth)
  }

  /**
   * SECURITY: every cycle has a branch back to a loop, which checks the fuel. Exceptions can arrive at a loop without a
   * branch, so loops of functions that catch them check at their start instead.
   */
  #checkBeforeLoop(index: number): void {
    if (this.#stack.kind[index] === LABEL.loop && !this.#catches) this.#fuel.check(this.#stack.depth)
  }

  #if(): void {
    if (this.#live) {
      this.#fuel.pending += 1
      this.#sync()
      this.#settleAtLabel(this.#settled.has(this.#opened + 1) ? 0 : this.#fuel.pending)
    }
    this.#push(LABEL.if)
  }

  #else(): void {
    const stack = this.#stack
    const index = stack.depth - 1
    if (this.#live) {
      stack.reach(index, this.#fuel.unchecked)
      this.#sync()
      this.#settleAtLabel(stack.fixed[index] ? (stack.owed[index] as number) : this.#fuel.pending)
      stack.fix(index, this.#fuel.pending)
    }
    stack.kind[index] = LABEL.else
    this.#live = stack.live[index] === 1
    this.#fuel.pending = this.#live ? (stack.owedAtEntry[index] as number) : 0
    this.#fuel.meterAt = stack.meterAtEntry[index] as number
    this.#fuel.charged = stack.chargedAtEntry[index] as number
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
    const isLoop = stack.kind[index] === LABEL.loop
    const unchecked = Math.max(stack.uncheckedAtEnd(index), this.#live ? fuel.unchecked : 0)
    const owed = this.#catches && !isLoop ? 0 : stack.owedAtEnd(index)
    if (owed >= 0) {
      if (this.#live) {
        this.#sync()
        this.#settleAtLabel(owed)
      }
      fuel.pending = owed
      fuel.meterAt = METER_AT.local
    } else if (!this.#live) {
      fuel.pending = 0
      fuel.meterAt = METER_AT.local
    }
    stack.depth--
    // Code after a block counts as live if the block's start was, even if unreachable: no code is left unmetered.
    this.#live = stack.live[index] === 1
    if (!this.#live) fuel.pending = 0
    else if (this.#catches && !isLoop) this.#resyncPast()
    fuel.charged = Math.max(0, unchecked - fuel.pending)
  }

  /** Charges before a path joins others at a label. */
  #settleAtLabel(owed: number): void {
    if (this.#catches) this.#fuel.settle(0, METER_AT.global)
    else this.#fuel.settle(owed)
  }

  #resyncPast(): void {
    this.#syncPast()
    this.#fuel.resync()
  }

  #branchTo(label: number): void {
    const index = this.#stack.depth - 1 - label
    const owed = this.#stack.owedByBranch(index)
    this.#settleAtLabel(owed < 0 ? this.#fuel.pending : owed)
    this.#stack.fix(index, this.#fuel.pending)
    this.#stack.reach(index, this.#fuel.unchecked)
    this.#checkBeforeLoop(index)
  }

  /** A return becomes a branch to the end of the body, where the frame is released. */
  #return(): void {
    const outermost = this.#stack.depth - 1
    this.#sync()
    if (this.#live) this.#branchTo(outermost)
    else if (!this.#passed) return
    this.#fuel.code.u8(OP.br)
    this.#fuel.code.u32(outermost)
    this.#copied = this.#reader.at
    if (this.#live) this.#stop()
  }

  #branchTable(): void {
    const reader = this.#reader
    const count = reader.u32() + 1
    const targetsAt = reader.at
    let owed = -1
    for (let left = count; left > 0; left--) {
      const target = this.#stack.depth - 1 - reader.u32()
      const wanted = this.#live ? this.#stack.owedByBranch(target) : -1
      if (wanted >= 0 && owed >= 0 && wanted !== owed) this.#conflict = true
      if (wanted >= 0) owed = wanted
    }
    if (!this.#live || this.#conflict) return
    this.#fuel.pending += 1
    this.#sync()
    this.#settleAtLabel(owed < 0 ? this.#fuel.pending : owed)
    const past = reader.at
    reader.at = targetsAt
    let loop = -1
    for (let left = count; left > 0; left--) {
      const target = this.#stack.depth - 1 - reader.u32()
      this.#stack.fix(target, this.#fuel.pending)
      this.#stack.reach(target, this.#fuel.unchecked)
      if (this.#stack.kind[target] === LABEL.loop) loop = target
    }
    if (loop >= 0) this.#checkBeforeLoop(loop)
    reader.at = past
    this.#stop()
  }

  #handler(op: number): void {
    const fuel = this.#fuel
    if (op === OP.try && fuel.maxDeferred > 0) {
      this.needsExactCalls = true
      return
    }
    if (this.#live) {
      if (op === OP.try) fuel.pending += 1
      this.#sync()
      this.#settleAtLabel(0)
    }
    if (op === OP.try) {
      this.#push(LABEL.try)
      return
    }
    const index = this.#stack.depth - 1
    this.#stack.reach(index, MAX_UNCHECKED + 1)
    this.#live = this.#stack.live[index] === 1
    fuel.charged = MAX_UNCHECKED + 1
    fuel.pending = 0
    fuel.meterAt = METER_AT.local
    if (op === OP.delegate) this.#stack.depth--
    if (this.#live && (op !== OP.delegate || this.#catches)) this.#resyncPast()
  }

  /** A block whose handlers are the labels of the blocks around it. */
  #tryTable(): void {
    this.seesTryTable = true
    if (this.#fuel.maxDeferred > 0) {
      this.needsExactCalls = true
      return
    }
    if (!this.#catches) {
      this.#catches = this.#conflict = true
      return
    }
    const reader = this.#reader
    skipBlockType(reader)
    for (let left = reader.u32(); left > 0; left--) {
      const hasTag = reader.u8() < 2
      if (hasTag) reader.skipNumber()
      const target = this.#stack.depth - 1 - reader.u32()
      if (!this.#live) continue
      this.#stack.fix(target, 0)
      this.#stack.reach(target, MAX_UNCHECKED + 1)
    }
    if (this.#live) {
      this.#fuel.pending += 1
      this.#sync()
      this.#settleAtLabel(0)
    }
    this.#push(LABEL.tryTable)
  }

  #bulk(op: number): void {
    if (!this.#live) return
    this.#fuel.pending += 1
    if (op < BULK.memoryInit || op === BULK.dataDrop || op === BULK.elemDrop || op === BULK.tableSize) return
    this.#sync()
    const wide = isWideLength(this.#context, op, (position) => this.#operand(position))
    if (op === BULK.tableGrow || op === BULK.tableFill) this.movesReferences = true
    if (op === BULK.tableGrow) this.#grow(wide)
    else this.#fuel.chargeLength(this.#stack.depth, wide)
    if (op >= BULK.tableInit) this.#fuel.chargeWorkForLength(WORK_COST.tableElement, this.#stack.depth, wide)
  }

  #gc(op: number): void {
    if (!this.#live) return
    this.#fuel.pending += 1
    if (op === GC.brOnCast || op === GC.brOnCastFail) {
      this.#sync()
      this.#branchTo(this.#operand(2))
    } else if (hasOwnCharge(op)) {
      this.#sync()
      const operand = (position: number): number => this.#operand(position)
      chargeObjects(this.#fuel, this.#context, op, { operand, depth: this.#stack.depth })
    }
  }

  /** The end of the body is a label too: every path must reach it with the same amount owed. */
  #settleEnd(): void {
    const fuel = this.#fuel
    if (this.#stack.fixed[0] === 1 || this.#catches) {
      const owed = this.#stack.owed[0] as number
      if (this.#live) this.#settleAtLabel(owed)
      fuel.pending = owed
      fuel.meterAt = METER_AT.local
    } else if (!this.#live) {
      fuel.pending = 0
      fuel.meterAt = METER_AT.local
    }
  }
}
