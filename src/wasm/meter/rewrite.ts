import { SandboxError } from '../../model/errors.ts'
import { ByteReader, ByteWriter } from './bytes.ts'
import { importedCount, type ModuleShape, SECTION, type Section, type SizeLimits } from './decode.ts'
import { MAX_DEFERRED_FUEL } from './fuel-emitter.ts'
import { FunctionMeter } from './function-meter.ts'
import { AddedTypes, type PassingRule, passingOf, relayBody } from './passing.ts'
import { type FunctionType, functionTypeAt } from './types.ts'

/** Limits of the module, checked before the rewrite and written into the module. */
export type ModuleLimits = {
  readonly memoryPages: number
  /** Bytes of garbage-collected objects that a run may create in total. */
  readonly objectBytes: number
  readonly tableElements: number
  readonly functions: number
  readonly functionBytes: number
}

/**
 * The initial budget of a rewritten module. `host`: none; the host sets the meter and calls the start function.
 * Otherwise the module contains its own budget and runs its start function itself.
 */
export type InitialMeter = 'host' | { readonly fuel: number; readonly frames: number }

/** Names of the added exports. Reserved: a module that exports one of them is refused. */
export const METER_EXPORTS = {
  meter: '\0ringfence.meter',
  work: '\0ringfence.work',
  objects: '\0ringfence.objects',
  start: '\0ringfence.start',
} as const

type Rewrite = {
  readonly bytes: Uint8Array
  readonly shape: ModuleShape
  readonly limits: ModuleLimits
  readonly initial: InitialMeter
  readonly isLinked: boolean
}

/** Section order required by the format: tags come before globals, the data count before the code. */
const ORDER: readonly number[] = [1, 2, 3, 4, 5, 13, 6, 7, 8, 9, 12, 10, 11]

/**
 * Writes the metered module, one generator step per function, so that a caller can yield to its event loop.
 *
 * INVARIANT: no index changes. Up to three globals, their exports and the start function's, block types and locals are appended after the module's
 * own, so every existing index keeps its meaning; and since the original was valid, none of its indices can refer to
 * an appended entry.
 */
export function* rewriteModule(job: Rewrite): Generator<void, Uint8Array, void> {
  checkLimits(job)
  const code = yield* rewriteCode(job)
  const out = new ByteWriter()
  out.span(job.bytes, 0, 8)
  const own = new Map(job.shape.sections.map((section) => [section.id, section]))
  const custom = customBefore(job)
  const copyCustom = (id: number): void => {
    for (const { header, end } of custom.get(id) ?? []) out.span(job.bytes, header, end)
  }
  for (const id of ORDER) {
    copyCustom(id)
    const section = own.get(id)
    const content = sectionContent(job, id, section, code)
    if (content === undefined) continue
    out.u8(id)
    out.u32(content.length)
    out.append(content)
  }
  copyCustom(SECTION.custom)
  return out.done()
}

/** Custom sections that refer to the code by its byte offsets, which the rewrite changes. */
const OFFSETS =
  /^(\.debug_.*|reloc\..*|linking|metadata\.code\..*|code_annotations|external_debug_info|sourceMappingURL)$/

/**
 * The custom sections to keep, by the id of the section that follows them (`SECTION.custom`: at the end). Their place
 * matters: `dylink.0` must be the first section, and `name` must come after the data.
 */
function customBefore({ bytes, shape }: Rewrite): ReadonlyMap<number, readonly Section[]> {
  const before = new Map<number, readonly Section[]>()
  let waiting: Section[] = []
  for (const section of shape.sections) {
    if (section.id !== SECTION.custom) {
      before.set(section.id, waiting)
      waiting = []
    } else if (!OFFSETS.test(customName(bytes, section))) waiting.push(section)
  }
  return before.set(SECTION.custom, waiting)
}

const customName = (bytes: Uint8Array, { start }: Section): string => new ByteReader(bytes, start).text()

/** Whether a dynamic linker loads the module (`emcc -sSIDE_MODULE`). */
const isDynamic = ({ bytes, shape }: Rewrite): boolean =>
  shape.sections.some(
    (section) => section.id === SECTION.custom && /^dylink(\.0)?$/.test(customName(bytes, section)),
  )

type Code = {
  readonly bodies: ByteWriter
  /** The index of each function's type. */
  readonly functions: ByteWriter
  readonly types: ByteWriter
  readonly addedTypes: number
  /** The functions to export instead of those that pass the meter, by index. */
  readonly relays: ReadonlyMap<number, number>
  /** Whether the module can create objects outside of its memories. */
  readonly hasObjects: boolean
}

function sectionContent(
  job: Rewrite,
  id: number,
  section: Section | undefined,
  code: Code,
): ByteWriter | undefined {
  const { shape } = job
  switch (id) {
    case SECTION.type:
      return code.addedTypes > 0 ? extended(job, section, code.addedTypes, code.types) : copied(job, section)
    case SECTION.function:
      return section && code.functions
    case SECTION.memory:
      return shape.memories.length > 0 ? memorySection(job) : undefined
    case SECTION.table:
      return shape.tables.length > 0 ? tableSection(job) : undefined
    case SECTION.global:
      return extended(job, section, code.hasObjects ? 3 : 2, meterGlobals(job, code.hasObjects))
    case SECTION.export:
      return exportSection(job, section, code)
    case SECTION.start:
      return job.initial === 'host' ? undefined : copied(job, section)
    case SECTION.code:
      return section && code.bodies
    default:
      return copied(job, section)
  }
}

function copied({ bytes }: Rewrite, section: Section | undefined): ByteWriter | undefined {
  if (!section) return undefined
  const out = new ByteWriter()
  out.span(bytes, section.start, section.end)
  return out
}

/** A section with entries appended. */
function extended(
  { bytes }: Rewrite,
  section: Section | undefined,
  count: number,
  added: ByteWriter,
): ByteWriter {
  const out = new ByteWriter()
  const reader = new ByteReader(bytes, section?.start ?? 0)
  out.u32((section ? reader.u32() : 0) + count)
  if (section) out.span(bytes, reader.at, section.end)
  out.append(added)
  return out
}

/** The bytes that are left for functions after the initial values have created their objects. */
function objectBytesLeft({ shape, limits }: Rewrite): number {
  const left = limits.objectBytes - (shape.initialObjects ?? 0)
  if (left >= 0) return left
  throw new SandboxError(
    'resource-limit-exceeded',
    `the initial values of the module create ${shape.initialObjects} bytes of objects, the limit is ${limits.objectBytes}`,
  )
}

/** The meter, the allowance for slow instructions and, if the module can create objects, their bytes that are left. */
function meterGlobals(job: Rewrite, hasObjects: boolean): ByteWriter {
  const out = new ByteWriter()
  const { fuel, frames } = job.initial === 'host' ? { fuel: 0, frames: 0 } : job.initial
  const values = [(BigInt(fuel) << 16n) | BigInt(frames), BigInt(fuel)]
  if (hasObjects) values.push(BigInt(objectBytesLeft(job)))
  for (const value of values) {
    out.all([0x7e, 1, 0x42])
    out.signed64(value)
    out.u8(0x0b)
  }
  return out
}

function exportSection(
  job: Rewrite,
  section: Section | undefined,
  { hasObjects, relays }: Code,
): ByteWriter | undefined {
  const { shape } = job
  const added = section ? exportEntries(job, section, relays) : new ByteWriter()
  const out = new ByteWriter()
  // A dynamic linker takes every exported global for an address and adds an offset to it, which fails for the meter's.
  if (job.initial !== 'host' && isDynamic(job)) {
    out.u32(shape.exports.length)
    out.append(added)
    return section && out
  }
  const meter = meterGlobalOf(shape)
  const add = (name: string, kind: number, index: number): void => {
    added.text(name)
    added.u8(kind)
    added.u32(index)
  }
  add(METER_EXPORTS.meter, 3, meter)
  add(METER_EXPORTS.work, 3, meter + 1)
  if (hasObjects) add(METER_EXPORTS.objects, 3, meter + 2)
  const starts = shape.start !== undefined && job.initial === 'host'
  if (starts) add(METER_EXPORTS.start, 0, shape.start)
  out.u32(shape.exports.length + 2 + Number(hasObjects) + Number(starts))
  out.append(added)
  return out
}

/** The module's own exports. */
function exportEntries(
  { bytes, shape }: Rewrite,
  section: Section,
  relays: ReadonlyMap<number, number>,
): ByteWriter {
  const out = new ByteWriter()
  const reader = new ByteReader(bytes, section.start)
  reader.skipNumber()
  for (const { kind, index } of shape.exports) {
    const { at } = reader
    const length = reader.u32()
    reader.at += length + 1
    out.span(bytes, at, reader.at)
    out.u32((kind === 'function' ? relays.get(index) : undefined) ?? index)
    reader.skipNumber()
  }
  return out
}

const meterGlobalOf = (shape: ModuleShape): number => importedCount(shape, 'global') + shape.globals

/**
 * SECURITY: V8 optimises hot functions on background threads of the process. Fuel, deadline and memory limit do not cover
 * that work, and it continues after the run. Its cost grows faster than linearly with the loops of a function, so it is
 * estimated as the square of their number; blocks cost little. The measurements are in docs/decisions/0022.
 */
const MAX_LOOPS = 1000
const MAX_COMPILE_WORK = 2_000_000

const tooManyLoops = (loops: number): SandboxError =>
  loops > MAX_LOOPS
    ? new SandboxError('resource-limit-exceeded', `a function has more than ${MAX_LOOPS} loops`, {
        hint: 'split the function; loops make its compilation expensive',
      })
    : new SandboxError('resource-limit-exceeded', 'the functions of the module have too many loops', {
        hint: 'split functions with hundreds of loops, or the module',
      })

/** Divides the rest of the limit, so that all memories or tables at their maximum still stay below the limit. */
function shares(all: readonly SizeLimits[], ceiling: number, what: string): readonly SizeLimits[] {
  const least = all.reduce((sum, { min }) => sum + min, 0)
  if (least > ceiling) {
    throw new SandboxError(
      'resource-limit-exceeded',
      `the module needs ${least} ${what}, the limit is ${ceiling}`,
    )
  }
  const share = Math.floor((ceiling - least) / all.length)
  return all.map(({ min, max, wide }) => ({
    min,
    max: Math.min(max ?? Number.POSITIVE_INFINITY, min + share),
    wide,
  }))
}

function writeLimits(out: ByteWriter, { min, max, wide }: SizeLimits): void {
  out.u8(wide ? 5 : 1)
  out.u32(min)
  out.u32(max as number)
}

function memorySection({ shape, limits }: Rewrite): ByteWriter {
  const out = new ByteWriter()
  out.u32(shape.memories.length)
  for (const memory of shares(shape.memories, limits.memoryPages, 'pages of memory')) writeLimits(out, memory)
  return out
}

function tableSection({ bytes, shape, limits }: Rewrite): ByteWriter {
  const out = new ByteWriter()
  out.u32(shape.tables.length)
  const shared = shares(shape.tables, limits.tableElements, 'table elements')
  for (const [index, { type, initial }] of shape.tables.entries()) {
    if (initial) out.all([0x40, 0])
    out.span(bytes, type.start, type.end)
    writeLimits(out, shared[index] as SizeLimits)
    if (initial) out.span(bytes, initial.start, initial.end)
  }
  return out
}

function checkLimits({ shape, limits }: Rewrite): void {
  if (shape.functions.length > limits.functions) {
    throw new SandboxError(
      'resource-limit-exceeded',
      `the module has more than ${limits.functions} functions`,
    )
  }
  if (shape.exports.some(({ name }) => name.startsWith('\0'))) {
    throw new SandboxError('invalid-input', 'the module exports a reserved name')
  }
}

/** Whether the memories or tables have 64-bit addresses, in the order of their indices: imported ones first. */
const wideOf = ({ imports, memories, tables }: ModuleShape, kind: 'memory' | 'table'): readonly boolean[] => [
  ...imports.filter((entry) => entry.kind === kind).map(({ wide }) => wide),
  ...(kind === 'memory' ? memories : tables).map(({ wide }) => wide),
]

/**
 * Fuel may be owed across calls unless something catches exceptions: another module, the host, or a function, which is known only after
 * reading all bodies.
 */
function* rewriteCode(job: Rewrite): Generator<void, Code, void> {
  // Another host may call a module again after a trap, so the meter must be in its global by then.
  const isOurs = job.initial === 'host'
  const ride = isOurs && !job.isLinked ? MAX_DEFERRED_FUEL : 0
  let how: CallRules = { ride, passing: isOurs ? 'all' : 'none', keepsExceptions: false }
  for (let attempts = 5; attempts > 0; attempts--) {
    const code = yield* rewriteBodies(job, how)
    if ('bodies' in code) return code
    how = code
  }
  throw new SandboxError('internal', 'the meter did not settle')
}

/** How functions account for fuel when they call each other. A rewrite starts over with stricter rules if need be. */
type CallRules = {
  /** Fuel that may be owed at a call. */
  readonly ride: number
  readonly passing: PassingRule
  readonly keepsExceptions: boolean
}

function* rewriteBodies(job: Rewrite, rules: CallRules): Generator<void, Code | CallRules, void> {
  const { bytes, shape, limits } = job
  const { ride, keepsExceptions } = rules
  const types = new AddedTypes(bytes, shape.types.length)
  const bodies = new ByteWriter()
  const functions = new ByteWriter()
  const section = shape.sections.find(({ id }) => id === SECTION.code)
  const reader = new ByteReader(bytes, section?.start ?? 0)
  const passing = passingOf(shape, rules.passing)
  bodies.u32((section ? reader.u32() : 0) + passing.exported.length)
  functions.u32(shape.functions.length + passing.exported.length)
  const imported = importedCount(shape, 'function')
  const typeAt = (index: number): FunctionType => functionTypeAt(shape.types, index) as FunctionType
  const meter = new FunctionMeter(
    {
      bytes,
      meterGlobal: meterGlobalOf(shape),
      types: shape.types,
      importedFunctions: imported,
      passing,
      passingType: (type) => types.passing(typeAt(type)),
      keepsExceptions,
      wideMemories: wideOf(shape, 'memory'),
      wideTables: wideOf(shape, 'table'),
      resultsOnly: (type) => types.resultsOnly(type),
    },
    ride,
  )
  // Code can refer to every function that is exported or in a table or global, and hand it to other modules.
  const shared = new Set(shape.references)
  for (const { kind, index } of shape.exports) if (kind === 'function') shared.add(index)
  let compileWork = 0
  for (const [index, typeIndex] of shape.functions.entries()) {
    const size = reader.u32()
    if (size > limits.functionBytes) {
      throw new SandboxError(
        'resource-limit-exceeded',
        `a function is longer than ${limits.functionBytes} bytes`,
      )
    }
    const type = typeAt(typeIndex)
    const passed = passing.passes[index] === 1
    functions.u32(passed ? types.passing(type) : typeIndex)
    const isShared = !passed && shared.has(imported + index)
    meter.rewrite({ type, passed, isShared, start: reader.at, end: reader.at + size }, bodies)
    const next = stricter(rules, meter)
    if (next) return next
    compileWork += meter.loops ** 2
    if (meter.loops > MAX_LOOPS || compileWork > MAX_COMPILE_WORK) throw tooManyLoops(meter.loops)
    reader.at += size
    yield
  }
  for (const index of passing.exported) {
    const type = shape.functions[index - imported] as number
    functions.u32(type)
    const body = relayBody(typeAt(type), index, meterGlobalOf(shape))
    bodies.u32(body.length)
    bodies.append(body)
  }
  const hasObjects = keepsExceptions || shape.initialObjects !== undefined
  const relays = new Map(passing.exported.map((index, at) => [index, imported + shape.functions.length + at]))
  return { bodies, functions, types: types.out, addedTypes: types.count, relays, hasObjects }
}

/** The rules for another rewrite, if the code so far does not allow these. */
function stricter(rules: CallRules, meter: FunctionMeter): CallRules | undefined {
  const { ride, passing, keepsExceptions } = rules
  const allowed = meter.tailCalls ? 'none' : meter.movesReferences && passing === 'all' ? 'direct' : passing
  const next: CallRules = {
    ride: meter.needsExactCalls ? 0 : ride,
    passing: allowed,
    keepsExceptions: keepsExceptions || meter.seesTryTable,
  }
  const isSame =
    !meter.needsExactCalls && next.passing === passing && next.keepsExceptions === keepsExceptions
  return isSame ? undefined : next
}
