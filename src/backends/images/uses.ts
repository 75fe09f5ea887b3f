import { readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { isAlive, readText } from '../../host/system.ts'

/** Which running sandboxes use an unpacked image: each has a marker in its own directory, which is removed with it. */

const MARK = 'image'
const OWNED_NAME = /^container-(\d+-\d+)-/

/** Writes the marker that a sandbox uses this layer. */
export function noteUse(files: string, layer: string): void {
  writeFileSync(join(files, MARK), layer, { mode: 0o600 })
}

/** The layers in use, each with the sandboxes that use it. */
export function layersInUse(stateDir: string): ReadonlyMap<string, readonly string[]> {
  const run = join(stateDir, 'run')
  const uses = new Map<string, string[]>()
  for (const name of namesIn(run)) {
    const owner = OWNED_NAME.exec(name)?.[1]
    const layer = owner !== undefined && isAlive(owner) ? readText(join(run, name, MARK)) : undefined
    if (layer) uses.set(layer, [...(uses.get(layer) ?? []), `ringfence-${name.toLowerCase()}`])
  }
  return uses
}

function namesIn(dir: string): readonly string[] {
  try {
    return readdirSync(dir)
  } catch {
    return []
  }
}
