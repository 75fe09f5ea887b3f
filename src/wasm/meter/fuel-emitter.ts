import { ByteWriter } from './bytes.ts'
import { OP } from './opcodes.ts'

/**
 * The meter is one i64 global, `fuel << 16 | frames left`. A negative value means that the fuel is used up; bit 15 is
 * set when the frames are used up. A function keeps the meter in a local and writes it back before every call.
 */
const FUEL_SHIFT = 16
/** One unit of fuel in the meter's i64. */
const FUEL_UNIT = 2 ** FUEL_SHIFT
/** The frame count has 15 bits. */
export const MAX_FRAMES = 2 ** 15 - 1

const FUEL_BITS = signedBytes(-65_536n)
const FRAME_BITS = signedBytes(0xffffn)

function signedBytes(value: bigint): Uint8Array {
  const writer = new ByteWriter()
  writer.signed64(value)
  return writer.done()
}

/** `amount, answer` → the amount, or 0 if the answer is -1. */
const TIMES_SUCCESS_32: readonly number[] = [OP.i32Const, 0x7f, OP.i32Ne, OP.i32Mul]
const TIMES_SUCCESS_64: readonly number[] = [OP.i64Const, 0x7f, OP.i64Ne, OP.i64ExtendI32U, OP.i64Mul]

/** Where the meter's current value is held: in the function's local, in the global, or (3) in both. */
export const METER_AT = { local: 1, global: 2 } as const

/**
 * Small amounts of fuel may stay uncharged across calls, which saves a load and a store per call; the host checks the
 * meter again after the run. INVARIANT: in a module that catches exceptions, no fuel is owed at a call.
 */
export const MAX_DEFERRED_FUEL = 64

/** Extra cost of instructions that take V8 far longer than one unit of fuel accounts for (measured in ns per unit). */
export const WORK_COST = { throw: 1024, grow: 256, tableElement: 15 } as const

/** Fuel that a called function may use without a check. */
export const LEAF_FUEL = 512

/** The locals of the meter in one function. */
export type MeterLocals = {
  /** Whether the function takes the meter's value as its last parameter and returns it as its last result. */
  readonly passed: boolean
  readonly fuelLocal: number
  /** The first local for lengths. */
  readonly scratchLocal: number
}

/** Emits the fuel arithmetic of one function and tracks the fuel owed at the current instruction. */
export class FuelEmitter {
  readonly code = new ByteWriter()
  /** Fuel used since the last charge. */
  pending = 0
  /** Fuel charged since the last check, on the longest path to here, with what the called functions may use without a check. */
  charged = 0
  meterAt: number = METER_AT.local
  charges = 0
  calls = 0
  /** Set by code that branches to the frame's exit: checks, traps, handlers. */
  needsFrame = false
  needsScratch = false
  /** Like `needsScratch`, for 64-bit lengths. */
  needsWideScratch = false
  maxDeferred = MAX_DEFERRED_FUEL
  /** Whether the function's last parameter is the meter's value, and its last result the new value. */
  #passed = false
  #fuelLocal = 0
  #scratchLocal = 0
  readonly #meter: number
  readonly #work: number
  readonly #objects: number

  constructor(meterGlobal: number) {
    this.#meter = meterGlobal
    this.#work = meterGlobal + 1
    this.#objects = meterGlobal + 2
  }

  begin({ passed, fuelLocal, scratchLocal }: MeterLocals): void {
    this.code.reset()
    this.#passed = passed
    this.#fuelLocal = fuelLocal
    this.#scratchLocal = scratchLocal
    // Wasmtime charges one unit for entering a function.
    this.pending = 1
    this.charged = 0
    this.meterAt = METER_AT.local
    this.charges = 0
    this.calls = 0
    this.needsFrame = false
    this.needsScratch = false
    this.needsWideScratch = false
  }

  #with(op: number, index: number): void {
    this.code.u8(op)
    this.code.u32(index)
  }

  constant(value: number): void {
    this.code.u8(OP.i64Const)
    this.code.signed(value)
  }

  #constantBytes(bytes: Uint8Array): void {
    this.code.u8(OP.i64Const)
    this.code.all(bytes)
  }

  #load(): void {
    if (this.meterAt & METER_AT.local) this.#with(OP.localGet, this.#fuelLocal)
    else this.#with(OP.globalGet, this.#meter)
  }

  /** Charges pending fuel until only `owed` is left; afterwards the meter's value is held in `location`. */
  settle(owed: number, location: number = METER_AT.local): void {
    const charge = this.pending - owed
    this.pending = owed
    this.charged += Math.max(0, charge)
    if (charge === 0 && this.meterAt & location) return
    this.charges++
    this.#load()
    if (charge !== 0) {
      this.constant(charge * FUEL_UNIT)
      this.code.u8(OP.i64Sub)
    }
    if (location === METER_AT.local) this.#with(OP.localSet, this.#fuelLocal)
    else this.#with(OP.globalSet, this.#meter)
    this.meterAt = charge === 0 ? METER_AT.local | METER_AT.global : location
  }

  #called(): void {
    this.calls++
    this.charged += LEAF_FUEL
  }

  /** Before a call; after it the global is current and the local is stale. */
  beforeCall(): void {
    this.#called()
    if (!(this.meterAt & METER_AT.global) || this.pending > this.maxDeferred) this.settle(0, METER_AT.global)
    this.meterAt = METER_AT.global
  }

  /**
   * Pushes the meter's value, with the callee's frame taken, as the last argument of a call; the callee returns it with
   * the frame released, and `afterPassedCall` takes it from the results.
   */
  beforePassedCall(): void {
    this.#called()
    this.#load()
    this.constant(this.pending * FUEL_UNIT + 1)
    this.code.u8(OP.i64Sub)
    this.charged += this.pending
    this.pending = 0
  }

  /** The same below the table's index, which is on top of the stack. */
  beforePassedCallIndirect(): void {
    const index = this.#amountLocal(false)
    this.#with(OP.localSet, index)
    this.beforePassedCall()
    this.#with(OP.localGet, index)
  }

  afterPassedCall(): void {
    this.#with(OP.localSet, this.#fuelLocal)
    this.meterAt = METER_AT.local
  }

  /** Before a tail call: releases the frame first. */
  beforeTailCall(): void {
    this.#called()
    this.leave()
  }

  /** Charges all pending fuel and releases the frame. */
  leave(): void {
    this.#load()
    const change = 1 - this.pending * FUEL_UNIT
    this.constant(change)
    this.code.u8(OP.i64Add)
    if (!this.#passed) this.#with(OP.globalSet, this.#meter)
    this.pending = 0
  }

  /** Before a trap or an exception, which may leave the function without its epilogue. */
  beforeExit(): void {
    this.needsFrame = true
    this.settle(0, METER_AT.global)
  }

  #jumpIfNegative(depth: number): void {
    this.needsFrame = true
    this.constant(0)
    this.code.u8(OP.i64LtS)
    this.#with(OP.brIf, depth)
  }

  /** Fuel that may be used between the last check and here. */
  get unchecked(): number {
    return this.charged + this.pending
  }

  /** Ends the run if the fuel is used up. Requires that nothing is pending and the local is current. */
  check(depth: number): void {
    this.charged = 0
    this.#with(OP.localGet, this.#fuelLocal)
    this.#jumpIfNegative(depth)
  }

  /** Charges the length on top of the stack, one unit of fuel each, before the instruction that consumes it. */
  chargeLength(depth: number, wide = false): void {
    this.settle(0)
    this.#with(OP.localTee, this.#amountLocal(wide))
    this.#chargeAmount(depth, wide)
  }

  /** The local that holds a length; the one after it holds the answer of a growth. */
  #amountLocal(wide: boolean): number {
    if (wide) this.needsWideScratch = true
    else this.needsScratch = true
    return this.#scratchLocal + (wide ? 2 : 0)
  }

  /** Subtracts the saved length from the fuel, which must be in the local. */
  #chargeAmount(depth: number, wide: boolean): void {
    this.#with(OP.localGet, this.#fuelLocal)
    this.#amount(wide)
    this.constant(FUEL_SHIFT)
    this.code.all([OP.i64Shl, OP.i64Sub])
    this.#with(OP.localTee, this.#fuelLocal)
    this.#jumpIfNegative(depth)
    this.meterAt = METER_AT.local
  }

  /** The saved length as an i64. SECURITY: a longer one counts as 2^32 - 1, so that no shift or product overflows. */
  #amount(wide: boolean): void {
    const local = this.#amountLocal(wide)
    this.#with(OP.localGet, local)
    if (!wide) {
      this.code.u8(OP.i64ExtendI32U)
      return
    }
    this.constant(0xffff_ffff)
    this.#with(OP.localGet, local)
    this.constant(0x1_0000_0000)
    this.code.all([OP.i64LtU, OP.select])
  }

  /** Subtracts a fixed amount from the allowance for instructions that are slow in V8. */
  chargeWork(amount: number, depth: number): void {
    this.#subtract(this.#work, amount, depth)
  }

  /** Subtracts the bytes of a new object from what the module may create. */
  chargeObject(bytes: number, depth: number): void {
    this.#subtract(this.#objects, bytes, depth)
  }

  #subtract(global: number, amount: number, depth: number): void {
    this.settle(this.pending)
    this.#with(OP.globalGet, global)
    this.constant(amount)
    this.code.u8(OP.i64Sub)
    this.#keepOrEnd(global, depth)
  }

  /** The same per element of the length that `chargeLength` or `beforeGrow` saved. */
  chargeWorkForLength(each: number, depth: number, wide = false): void {
    this.#subtractForLength(this.#work, each, depth, wide)
  }

  /** The bytes of a new array, whose length `chargeLength` saved. */
  chargeObjectForLength(each: number, depth: number): void {
    this.#subtractForLength(this.#objects, each, depth, false)
  }

  #subtractForLength(global: number, each: number, depth: number, wide: boolean): void {
    this.settle(this.pending)
    this.#with(OP.globalGet, global)
    this.#amount(wide)
    this.constant(each)
    this.code.all([OP.i64Mul, OP.i64Sub])
    this.#keepOrEnd(global, depth)
  }

  /** Saves the requested growth, which is on top of the stack. */
  beforeGrow(depth: number, wide = false): void {
    this.chargeWork(WORK_COST.grow, depth)
    this.#with(OP.localTee, this.#amountLocal(wide))
  }

  /** Charges the growth, one unit each; a failed growth (-1 on the stack) costs nothing. */
  afterGrow(depth: number, wide = false): void {
    const amount = this.#amountLocal(wide)
    this.#with(OP.localTee, amount + 1)
    this.#with(OP.localGet, amount)
    this.#with(OP.localGet, amount + 1)
    this.code.all(wide ? TIMES_SUCCESS_64 : TIMES_SUCCESS_32)
    this.#with(OP.localSet, amount)
    this.settle(0)
    this.#chargeAmount(depth, wide)
  }

  #keepOrEnd(global: number, depth: number): void {
    this.#with(OP.globalSet, global)
    this.#with(OP.globalGet, global)
    this.#jumpIfNegative(depth)
  }

  /** At the start of a handler: takes the fuel from the global (as the throw left it) and the frames from the local. */
  resync(): void {
    this.needsFrame = true
    this.#with(OP.globalGet, this.#meter)
    this.#constantBytes(FUEL_BITS)
    this.code.u8(OP.i64And)
    this.#with(OP.localGet, this.#fuelLocal)
    this.#constantBytes(FRAME_BITS)
    this.code.all([OP.i64And, OP.i64Or])
    this.#with(OP.localSet, this.#fuelLocal)
    this.meterAt = METER_AT.local
  }

  /** The function's entry code, written to `head`: takes a frame and exits if frames or fuel are used up. */
  enter(head: ByteWriter): void {
    head.u8(this.#passed ? OP.localGet : OP.globalGet)
    head.u32(this.#passed ? this.#fuelLocal : this.#meter)
    if (!this.#passed) {
      head.all([OP.i64Const, 1, OP.i64Sub, OP.localTee])
      head.u32(this.#fuelLocal)
    }
    // Bit 15 and the sign in one test. A mask of 64 bits would take V8 a longer instruction.
    head.all([OP.i64Const, 48, OP.i64Shl, OP.localGet])
    head.u32(this.#fuelLocal)
    head.all([OP.i64Or, OP.i64Const, 0, OP.i64LtS, OP.brIf, 0])
  }

  /** The exit of an ended run. A trap, not an exception, because the guest cannot catch a trap. */
  trap(): void {
    this.#with(OP.localGet, this.#fuelLocal)
    this.#with(OP.globalSet, this.#meter)
    this.code.u8(OP.unreachable)
  }

  /** One subtraction before a body without branches. */
  chargeUpFront(head: ByteWriter): void {
    head.u8(OP.globalGet)
    head.u32(this.#meter)
    head.u8(OP.i64Const)
    head.signed(this.pending * FUEL_UNIT)
    head.all([OP.i64Sub, OP.globalSet])
    head.u32(this.#meter)
  }

  /** One subtraction after the body; its local started at zero, or with the passed value, and collected the charges. */
  chargeGathered(): void {
    if (this.#passed) {
      this.leave()
      return
    }
    this.#with(OP.globalGet, this.#meter)
    if (this.charges > 0) {
      this.#with(OP.localGet, this.#fuelLocal)
      this.code.u8(OP.i64Add)
    }
    this.constant(this.pending * FUEL_UNIT)
    this.code.u8(OP.i64Sub)
    this.#with(OP.globalSet, this.#meter)
  }
}
