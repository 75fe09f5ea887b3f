import { isWithin } from '../../model/path.ts'
import type { Mount, Protection } from '../../model/plan.ts'
import type { Spec } from '../../model/spec.ts'
import { PROTECTION, pinnedTo } from './protect.ts'

/** What lies in writable places and is led to by a protected name (host/files/git-pins.ts observes it). */
export type PinFacts = { readonly repositories: readonly string[]; readonly files: readonly string[] }

/** The host's paths that a spec asks to write, as it names them. */
export function writablePathsOf(spec: Spec): readonly string[] {
  if (spec.preset === 'read-only') return []
  const mounts = (spec.mounts ?? []).filter(({ mode }) => mode !== 'ro').map(({ source }) => source)
  return [...(spec.workspace === undefined ? [] : [spec.workspace]), ...(spec.write ?? []), ...mounts]
}

/** A real path of the host as the sandbox sees it, wherever it is mounted. */
const insideOf = (mounts: readonly Mount[], path: string): readonly string[] =>
  mounts
    .filter(({ real, mode }) => mode === 'rw' && isWithin(path, real))
    .map(({ real, target }) => `${target === '/' ? '' : target}${path.slice(real === '/' ? 0 : real.length)}`)

/** The protection of these mounts. */
export function protectionFor(mounts: readonly Mount[], { repositories, files }: PinFacts): Protection {
  const pinned = pinnedTo(repositories, files).pinned.flatMap((path) => insideOf(mounts, path))
  // SECURITY: a name that leads to a whole mount would close it; what is in it is protected by its names.
  const closes = new Set(mounts.map(({ target }) => target))
  return { ...PROTECTION, pinned: [...new Set(pinned)].filter((path) => path !== '' && !closes.has(path)) }
}
