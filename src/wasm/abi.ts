import { SandboxError } from '../model/errors.ts'
import { exportedFunction, type ImportShape, type ModuleShape } from './meter/decode.ts'
import { type FunctionType, functionTypeAt } from './meter/types.ts'
import { EXTISM, systemImport } from './system-imports.ts'
import type { GuestEntry } from './worker/guest-protocol.ts'

/** What a guest must export and may import. */

const I32 = 0x7f
const I64 = 0x7e
const NUMERIC: ReadonlySet<number> = new Set([I32, I64, 0x7d, 0x7c])

type Signature = { readonly params: readonly number[]; readonly results: readonly number[] }
const signature = (params: readonly number[], results: readonly number[]): Signature => ({ params, results })

const REQUEST = signature([I32, I32], [I64])

/** Every host function by its import name, in the module `ringfence` or `openfang`. */
const HOST_IMPORTS: Readonly<Record<string, Signature>> = {
  host_call: REQUEST,
  host_log: signature([I32, I32, I32], []),
  host_file_read: REQUEST,
  host_file_write: REQUEST,
  host_file_list: REQUEST,
  host_net_fetch: REQUEST,
  host_memory_store: REQUEST,
  host_memory_recall: REQUEST,
}

const HOST_MODULES: readonly string[] = ['ringfence', 'openfang']

type CoreKind = Exclude<GuestEntry['kind'], 'component'>

/** A module's entry point and imports; determined once per module. */
export type GuestAbi = {
  readonly kind: CoreKind
  /** The types of `run`'s parameters. */
  readonly params: readonly number[]
  readonly initialize: boolean
  /** The exported functions of a plug-in that can be called. */
  readonly plugin: readonly string[]
  readonly imports: readonly { readonly module: string; readonly name: string }[]
}

const problem = (message: string): SandboxError => new SandboxError('invalid-input', message)

/** Reads a module's interface from its outline; throws if the interface is not supported. */
export function abiOf(shape: ModuleShape): GuestAbi {
  for (const entry of shape.imports) checkImport(shape, entry)
  const imports = shape.imports.map(({ module, name }) => ({ module, name }))
  const alloc = exportedFunction(shape, 'alloc')
  if (alloc && !isSignature(alloc, signature([I32], [I32])))
    throw problem('`alloc` must be of type (i32) -> i32')
  const initialize = isSignature(exportedFunction(shape, '_initialize'), signature([], []))
  const kind = kindOf(shape)
  const params = kind === 'run' ? (exportedFunction(shape, 'run')?.params ?? []) : []
  return { kind, params, initialize, imports, plugin: kind === 'plugin' ? pluginFunctions(shape) : [] }
}

/** Entry points of a language runtime, not functions of the plug-in. */
const RUNTIME_ENTRY = /^_|^hs_|^(malloc|free|calloc|realloc|memory|asyncify_.*)$/

/** Exported functions without parameters; a result of 0, or none, means success. */
function pluginFunctions(shape: ModuleShape): readonly string[] {
  return shape.exports
    .filter(({ name, kind }) => kind === 'function' && !RUNTIME_ENTRY.test(name))
    .map(({ name }) => name)
    .filter((name) => {
      const type = exportedFunction(shape, name)
      return isSignature(type, signature([], [I32])) || isSignature(type, signature([], []))
    })
}

/** Selects the plug-in function to call: the named one, or the only one. */
export function pluginEntry({ plugin }: GuestAbi, wanted: string | undefined): GuestEntry {
  const name = wanted ?? (plugin.length === 1 ? plugin[0] : undefined)
  if (name !== undefined && plugin.includes(name)) return { kind: 'plugin', name }
  if (plugin.length === 0) throw problem('the plug-in exports no function that takes no parameters')
  const shown = plugin.slice(0, 20).join('`, `')
  throw problem(
    name === undefined ? `name a function to call: \`${shown}\`` : `there is no function \`${name}\``,
  )
}

function kindOf(shape: ModuleShape): CoreKind {
  if (shape.imports.some(({ module }) => module === EXTISM)) return 'plugin'
  const execute = exportedFunction(shape, 'execute')
  if (execute) {
    if (!isSignature(execute, REQUEST)) throw problem('`execute` must be of type (i32, i32) -> i64')
    if (!exportedFunction(shape, 'alloc')) throw problem('a module with `execute` must export `alloc` too')
    if (!hasMemory(shape)) throw problem('a module with `execute` must export its memory as `memory`')
    return 'execute'
  }
  if (isSignature(exportedFunction(shape, '_start'), signature([], []))) return 'command'
  const run = exportedFunction(shape, 'run')
  if (!run) throw problem('the module exports neither `execute` nor `_start` nor `run`')
  if (![...run.params, ...run.results].every((type) => NUMERIC.has(type))) {
    throw problem('`run` must take and return numbers')
  }
  return 'run'
}

const hasMemory = (shape: ModuleShape): boolean =>
  shape.exports.some(({ name, kind }) => name === 'memory' && kind === 'memory')

function isSignature(type: FunctionType | undefined, { params, results }: Signature): boolean {
  return type?.params.join() === params.join() && type.results.join() === results.join()
}

function checkImport(shape: ModuleShape, { module, name, kind, type }: ImportShape): void {
  const shown = `\`${module}.${name}\``
  if (kind !== 'function')
    throw problem(`the module imports the ${kind} ${shown}; only functions can be imported`)
  const given = functionTypeAt(shape.types, type)
  const system = systemImport(module, name, given)
  if (system === 'fits') return
  if (system === 'other-type') throw problem(`the module imports ${shown} with another type`)
  const wanted =
    HOST_MODULES.includes(module) && Object.hasOwn(HOST_IMPORTS, name) ? HOST_IMPORTS[name] : undefined
  if (wanted === undefined) throw problem(`the module imports ${shown}, which does not exist`)
  if (!isSignature(given, wanted)) throw problem(`the module imports ${shown} with another type`)
}

/** The arguments of a plain `run`, from the input: a number, or a list with one number per parameter. */
export function runArguments(params: readonly number[], input: unknown): readonly (number | bigint)[] {
  if (params.length === 0) return []
  const given = Array.isArray(input) ? input : [input]
  if (given.length !== params.length) throw problem(`\`run\` takes ${params.length} numbers`)
  return params.map((type, index) => numberFor(type, given[index]))
}

function numberFor(type: number, value: unknown): number | bigint {
  if (type === I64 && typeof value === 'string' && /^-?\d{1,20}$/.test(value)) return BigInt(value)
  if (typeof value !== 'number' || !Number.isFinite(value)) throw problem('`run` takes numbers only')
  if (type !== I64) return value
  if (!Number.isSafeInteger(value)) throw problem('a 64-bit argument must be a whole number, or text')
  return BigInt(value)
}
