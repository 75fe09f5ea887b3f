import { type Dirent, lstatSync, readdirSync } from 'node:fs'
import type { PathObservation } from './walk.ts'

// Keeps the check below a few milliseconds even in a large tree; names that are not found count as outside.
const BUDGET = 4000

/**
 * Counts how many names of an observed file are below the given directories; `undefined` for anything with a single
 * name. Checks a bounded number of entries, the file's own directory first, where hard links usually are.
 */
export function countNamesInside(
  observation: PathObservation,
  roots: readonly PathObservation[],
): number | undefined {
  if (observation.state !== 'exists') return undefined
  const { kind, nlink, dev, ino } = observation.thing
  if (kind !== 'file' || nlink < 2) return undefined
  const tops = roots.flatMap((root) => (root.state === 'exists' ? [root.real as string] : []))
  const own = observation.real.slice(0, observation.real.lastIndexOf('/')) || '/'
  const queue = [own, ...tops]
  const seen = new Set<string>()
  const names = new Set<string>()
  let left = BUDGET
  for (let dir = queue.shift(); dir !== undefined && left > 0; dir = queue.shift()) {
    if (seen.has(dir)) continue
    seen.add(dir)
    for (const entry of entriesOf(dir)) {
      if (--left <= 0 || names.size === nlink) break
      const path = `${dir === '/' ? '' : dir}/${entry.name}`
      if (entry.isDirectory()) queue.push(path)
      else if (entry.isFile() && isInode(path, dev, ino)) names.add(path)
    }
  }
  return names.size
}

function entriesOf(dir: string): readonly Dirent[] {
  try {
    return readdirSync(dir, { withFileTypes: true })
  } catch {
    return []
  }
}

function isInode(path: string, dev: string, ino: string): boolean {
  const stat = lstatSync(path, { bigint: true, throwIfNoEntry: false })
  return stat !== undefined && String(stat.ino) === ino && String(stat.dev) === dev
}
