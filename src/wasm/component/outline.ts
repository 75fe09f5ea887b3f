import { SECTION } from '../meter/decode.ts'
import { ComponentReader, decodeBudget } from './reader.ts'

/** Whether a core module has memories and tables of its own, read before the engine validates it. */
export function outlineOf(module: Uint8Array): { readonly memories: number; readonly tables: number } {
  const reader = new ComponentReader(module, Math.min(8, module.length), module.length, 0, decodeBudget())
  const counts = { memories: 0, tables: 0 }
  while (!reader.done) {
    const id = reader.u8()
    const section = reader.inner(reader.u32())
    if (id === SECTION.memory) counts.memories = section.u32()
    if (id === SECTION.table) counts.tables = section.u32()
  }
  return counts
}
