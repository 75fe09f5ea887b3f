import { SandboxError } from '../../model/errors.ts'
import { wasmEngine } from '../engine.ts'
import { ByteReader } from './bytes.ts'
import { decodeModule, type ModuleShape, SECTION } from './decode.ts'
import { skipInstruction, skipLocals } from './immediates.ts'
import { OP } from './opcodes.ts'

/** Why an engine rejects a module that a newer one would run. */

const HEADER = [0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]

/** What a module uses besides its shape: the first bytes of its instructions. */
type Use = { readonly shape: ModuleShape; readonly opcodes: ReadonlySet<number> }

type Feature = {
  readonly name: string
  /** The first version of Node whose engine has it. */
  readonly node: number
  /** The sections of a module that only an engine with the feature accepts. */
  readonly probe: readonly number[]
  readonly isUsed: (use: Use) => boolean
}

const usesAny =
  (...ops: readonly number[]) =>
  ({ opcodes }: Use): boolean =>
    ops.some((op) => opcodes.has(op))

const FEATURES: readonly Feature[] = [
  {
    name: 'garbage collection',
    node: 22,
    probe: [1, 3, 1, 0x5f, 0],
    isUsed: (use) => use.shape.initialObjects !== undefined || usesAny(0xd3, OP.prefixGc)(use),
  },
  {
    name: 'multiple memories',
    node: 22,
    probe: [5, 5, 2, 0, 0, 0, 0],
    isUsed: ({ shape }) => allOf(shape, 'memory').length > 1,
  },
  {
    name: '64-bit memory',
    node: 22,
    probe: [5, 3, 1, 4, 0],
    isUsed: ({ shape }) => allOf(shape, 'memory').some(({ wide }) => wide),
  },
  {
    name: '64-bit tables',
    node: 24,
    probe: [4, 4, 1, 0x70, 4, 0],
    isUsed: ({ shape }) => allOf(shape, 'table').some(({ wide }) => wide),
  },
  {
    name: 'exceptions with references (try_table)',
    node: 22,
    probe: [1, 4, 1, 0x60, 0, 0, 3, 2, 1, 0, 10, 8, 1, 6, 0, 0x1f, 0x40, 0, 0x0b, 0x0b],
    isUsed: usesAny(OP.tryTable, OP.throwRef),
  },
  {
    name: 'typed references',
    node: 22,
    probe: [1, 9, 2, 0x60, 0, 0, 0x60, 1, 0x63, 0, 0],
    isUsed: (use) =>
      usesAny(OP.callRef, OP.returnCallRef, 0xd4, OP.brOnNull, OP.brOnNonNull)(use) ||
      hasTypedReferences(use.shape),
  },
]

const allOf = (shape: ModuleShape, kind: 'memory' | 'table'): readonly { readonly wide: boolean }[] => [
  ...shape.imports.filter((entry) => entry.kind === kind),
  ...(kind === 'memory' ? shape.memories : shape.tables),
]

const hasTypedReferences = ({ types, tables }: ModuleShape): boolean =>
  tables.some(({ initial }) => initial !== undefined) ||
  types.some((type) => 'params' in type && [...type.params, ...type.results].some((code) => code < 0x6f))

/** The error for a module that the engine rejects: it names the feature that the engine lacks, if there is one. */
export function invalidModule(bytes: Uint8Array): SandboxError {
  const missing = missingFeature(bytes)
  if (missing === undefined) return new SandboxError('invalid-input', 'not a valid WebAssembly module')
  const { name, node } = missing
  return new SandboxError(
    'unsupported',
    `the module uses ${name}, which Node ${process.versions.node} cannot run`,
    {
      hint: `run Ringfence with Node ${node} or newer, or compile the module without this feature`,
    },
  )
}

function missingFeature(bytes: Uint8Array): Feature | undefined {
  let use: Use
  try {
    const shape = decodeModule(bytes)
    use = { shape, opcodes: opcodesOf(bytes, shape) }
  } catch {
    return undefined // not readable, so nothing can be said about it
  }
  const engine = wasmEngine()
  return FEATURES.find(
    ({ isUsed, probe }) => isUsed(use) && !engine.validate(Uint8Array.from([...HEADER, ...probe])),
  )
}

function opcodesOf(bytes: Uint8Array, shape: ModuleShape): ReadonlySet<number> {
  const found = new Set<number>()
  const section = shape.sections.find(({ id }) => id === SECTION.code)
  if (!section) return found
  const reader = new ByteReader(bytes, section.start)
  for (let left = reader.count(); left > 0; left--) {
    const size = reader.u32()
    const end = Math.min(reader.at + size, section.end)
    skipLocals(reader)
    while (reader.at < end) found.add(skipInstruction(reader))
    reader.at = end
  }
  return found
}
