import { SandboxError } from '../../model/errors.ts'
import type { WasmModule } from '../engine.ts'
import type { ModuleShape } from '../meter/decode.ts'
import type { MeterOptions } from '../meter/meter.ts'
import type { ComponentEntry, ComponentModule } from '../worker/guest-protocol.ts'
import { decodeComponent } from './decode.ts'
import type { Definition } from './definitions.ts'
import { outlineOf } from './outline.ts'

/** A component whose core modules have been validated, metered and compiled. */
export type LoadedComponent = ComponentEntry

type Compiled = { readonly module: WasmModule; readonly shape: ModuleShape }
/** Meters and compiles one core module. */
type LoadCore = (
  module: Uint8Array,
  limits: Required<Pick<MeterOptions, 'memoryMb' | 'tableElements'>>,
) => Promise<Compiled>

const PAGES_PER_MB = 16
const TABLE_ELEMENTS = 1 << 20

/**
 * Loads a component. SECURITY: the limits of a run are divided between the modules that have a memory or a table, so that all
 * of them together stay below; the thread counts how often each one is started.
 */
export async function loadComponent(
  bytes: Uint8Array,
  memoryMb: number,
  load: LoadCore,
): Promise<LoadedComponent> {
  const { definitions, modules } = decodeComponent(bytes)
  checkImports(definitions)
  const call = entryOf(definitions)
  const outlines = modules.map(outlineOf)
  const share = (has: (outline: { memories: number; tables: number }) => boolean, of: number): number =>
    Math.floor(of / Math.max(1, outlines.filter(has).length))
  const pages = share(({ memories }) => memories > 0, memoryMb * PAGES_PER_MB)
  const elements = share(({ tables }) => tables > 0, TABLE_ELEMENTS)
  const loaded: ComponentModule[] = []
  for (const core of modules) {
    const { module, shape } = await load(core, { memoryMb: pages / PAGES_PER_MB, tableElements: elements })
    loaded.push({
      module,
      pages: shape.memories.length > 0 ? pages : 0,
      elements: shape.tables.length > 0 ? elements : 0,
      bytes: core.length,
      objects: shape.initialObjects !== undefined,
    })
  }
  const limits = { pages: memoryMb * PAGES_PER_MB, elements: TABLE_ELEMENTS }
  return { kind: 'component', definitions, modules: loaded, limits, call }
}

const problem = (message: string): SandboxError => new SandboxError('invalid-input', message)

/** The packages of WASI 0.2 that the host offers. A function that is missing in one of them ends the run when it is called. */
const OFFERED = /^wasi:(io|cli|clocks|random|filesystem|http|sockets)\/[a-z0-9-]+@0\.2\.[0-9]+$/

function checkImports(definitions: readonly Definition[]): void {
  for (const definition of definitions) {
    if (definition.is !== 'import' || definition.description.sort === 'type') continue
    if (definition.description.sort !== 'instance' || !OFFERED.test(definition.name))
      throw problem(`the component imports \`${definition.name.slice(0, 100)}\`, which does not exist`)
  }
}

const COMMAND = /^wasi:cli\/run@0\.2\.[0-9]+$/

function entryOf(definitions: readonly Definition[]): ComponentEntry['call'] {
  for (const definition of definitions) {
    if (definition.is !== 'export') continue
    const { name, sort } = definition
    if (sort === 'instance' && COMMAND.test(name)) return { kind: 'command', name }
    if (sort === 'func' && name === 'execute') return { kind: 'execute', name }
  }
  throw problem('the component exports neither `wasi:cli/run` nor `execute`')
}
