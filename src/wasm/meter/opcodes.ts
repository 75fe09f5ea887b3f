import { SandboxError } from '../../model/errors.ts'

/** The instruction set for the meter: the length of each instruction and its cost. */

/** Instructions that the meter handles individually or emits. */
export const OP = {
  unreachable: 0x00,
  nop: 0x01,
  block: 0x02,
  loop: 0x03,
  if: 0x04,
  else: 0x05,
  try: 0x06,
  catch: 0x07,
  throw: 0x08,
  rethrow: 0x09,
  throwRef: 0x0a,
  end: 0x0b,
  br: 0x0c,
  brIf: 0x0d,
  brTable: 0x0e,
  return: 0x0f,
  call: 0x10,
  callIndirect: 0x11,
  returnCall: 0x12,
  returnCallIndirect: 0x13,
  callRef: 0x14,
  returnCallRef: 0x15,
  delegate: 0x18,
  catchAll: 0x19,
  drop: 0x1a,
  select: 0x1b,
  tryTable: 0x1f,
  localGet: 0x20,
  localSet: 0x21,
  localTee: 0x22,
  globalGet: 0x23,
  globalSet: 0x24,
  tableGet: 0x25,
  tableSet: 0x26,
  memoryGrow: 0x40,
  i32Const: 0x41,
  i64Const: 0x42,
  i32Ne: 0x47,
  i64Ne: 0x52,
  i64LtS: 0x53,
  i64LtU: 0x54,
  i32Mul: 0x6c,
  i64Add: 0x7c,
  i64Sub: 0x7d,
  i64Mul: 0x7e,
  i64And: 0x83,
  i64Or: 0x84,
  i64Shl: 0x86,
  i64ExtendI32U: 0xad,
  refFunc: 0xd2,
  brOnNull: 0xd5,
  brOnNonNull: 0xd6,
  prefixGc: 0xfb,
  prefixBulk: 0xfc,
  prefixSimd: 0xfd,
} as const

/** Second bytes after `prefixBulk`. */
export const BULK = {
  memoryInit: 8,
  dataDrop: 9,
  memoryCopy: 10,
  memoryFill: 11,
  tableInit: 12,
  elemDrop: 13,
  tableCopy: 14,
  tableGrow: 15,
  tableSize: 16,
  tableFill: 17,
} as const

/** Second bytes after `prefixGc`. */
export const GC = {
  structNew: 0,
  structNewDefault: 1,
  structGet: 2,
  structSet: 5,
  arrayNew: 6,
  arrayNewDefault: 7,
  arrayNewFixed: 8,
  arrayNewData: 9,
  arrayNewElem: 10,
  arrayGet: 11,
  arraySet: 14,
  arrayLen: 15,
  arrayFill: 16,
  arrayCopy: 17,
  arrayInitData: 18,
  arrayInitElem: 19,
  refTest: 20,
  refCastNull: 23,
  brOnCast: 24,
  brOnCastFail: 25,
  anyConvertExtern: 26,
  i31GetU: 30,
} as const

/** How to skip the immediates of an instruction. */
export const IMM = {
  none: 0,
  number: 1,
  twoNumbers: 2,
  memory: 3,
  four: 4,
  eight: 5,
  blockType: 6,
  branchTable: 7,
  types: 8,
  prefix: 9,
  heapType: 10,
  handlers: 11,
  refused: 255,
} as const

/** Indexed by first byte. Opcodes that are not listed are refused: an unknown instruction is never copied. */
export const IMMEDIATES: Uint8Array = immediates()

function immediates(): Uint8Array {
  const table = new Uint8Array(256).fill(IMM.refused)
  const ranges: readonly (readonly [first: number, last: number, kind: number])[] = [
    [0x00, 0x01, IMM.none],
    [0x02, 0x04, IMM.blockType],
    [0x05, 0x05, IMM.none],
    [0x06, 0x06, IMM.blockType],
    [0x07, 0x09, IMM.number],
    [0x0a, 0x0a, IMM.none],
    [0x0b, 0x0b, IMM.none],
    [0x0c, 0x0d, IMM.number],
    [0x0e, 0x0e, IMM.branchTable],
    [0x0f, 0x0f, IMM.none],
    [0x10, 0x10, IMM.number],
    [0x11, 0x11, IMM.twoNumbers],
    [0x12, 0x12, IMM.number],
    [0x13, 0x13, IMM.twoNumbers],
    [0x14, 0x15, IMM.number],
    [0x18, 0x18, IMM.number],
    [0x19, 0x1b, IMM.none],
    [0x1c, 0x1c, IMM.types],
    [0x1f, 0x1f, IMM.handlers],
    [0x20, 0x26, IMM.number],
    [0x28, 0x3e, IMM.memory],
    [0x3f, 0x42, IMM.number],
    [0x43, 0x43, IMM.four],
    [0x44, 0x44, IMM.eight],
    [0x45, 0xc4, IMM.none],
    [0xd0, 0xd0, IMM.heapType],
    [0xd1, 0xd1, IMM.none],
    [0xd2, 0xd2, IMM.number],
    [0xd3, 0xd4, IMM.none],
    [0xd5, 0xd6, IMM.number],
    [0xfb, 0xfd, IMM.prefix],
  ]
  for (const [first, last, kind] of ranges) table.fill(kind, first, last + 1)
  return table
}

/** Wasmtime's cost table: these opcodes are free, all others cost one unit. */
const FREE = [OP.unreachable, OP.nop, OP.block, OP.loop, OP.else, OP.end, OP.return, OP.drop]

/** Fuel cost of an instruction, indexed by first byte. */
export const COSTS: Uint8Array = costs()

function costs(): Uint8Array {
  const table = new Uint8Array(256).fill(1)
  for (const op of FREE) table[op] = 0
  return table
}

/** Instructions that end a block, branch, or need a charge of their own. */
export const isOrdinary = (op: number): boolean =>
  op >= OP.drop &&
  op < OP.brOnNull &&
  op !== OP.tryTable &&
  op !== OP.memoryGrow &&
  op !== OP.tableGet &&
  op !== OP.tableSet

const FEATURES: readonly (readonly [first: number, last: number, feature: string])[] = [
  [0xe0, 0xe6, 'stack switching'],
  [0xfe, 0xfe, 'threads'],
]

/** The error for a feature that the meter does not support. */
export const unsupportedFeature = (feature: string): SandboxError =>
  new SandboxError('unsupported', `the module uses ${feature}, which the meter does not support`, {
    hint: 'compile it without this feature',
  })

/** The error for an opcode that is not in the tables. */
export function refusedOpcode(op: number): SandboxError {
  const known = FEATURES.find(([first, last]) => op >= first && op <= last)
  return unsupportedFeature(known?.[2] ?? `the unknown instruction 0x${op.toString(16).padStart(2, '0')}`)
}
