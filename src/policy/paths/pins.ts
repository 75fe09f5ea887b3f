import { isWithin } from '../../model/files/path.ts'
import type { Mount, Protection } from '../../model/plan.ts'
import type { Spec } from '../../model/spec.ts'
import { PROTECTION, pinnedTo } from './protect.ts'

/** Targets in writable directories that a protected name refers to (observed by host/files/git-pins.ts). */
export type PinFacts = { readonly repositories: readonly string[]; readonly files: readonly string[] }

/** The host paths that a spec requests for writing, as written. */
export function writablePathsOf(spec: Spec): readonly string[] {
  if (spec.preset === 'read-only') return []
  const mounts = (spec.mounts ?? []).filter(({ mode }) => mode !== 'ro').map(({ source }) => source)
  return [...(spec.workspace === undefined ? [] : [spec.workspace]), ...(spec.write ?? []), ...mounts]
}

/** The paths of a real host path inside the sandbox, one per mount that contains it. */
const insideOf = (mounts: readonly Mount[], path: string): readonly string[] =>
  mounts
    .filter(({ real, mode }) => mode === 'rw' && isWithin(path, real))
    .map(({ real, target }) => `${target === '/' ? '' : target}${path.slice(real === '/' ? 0 : real.length)}`)

/** The protection of these mounts. */
export function protectionFor(mounts: readonly Mount[], { repositories, files }: PinFacts): Protection {
  const pinned = pinnedTo(repositories, files).pinned.flatMap((path) => insideOf(mounts, path))
  // SECURITY: pinning a whole mount would make it read-only; its content is protected by name instead.
  const closes = new Set(mounts.map(({ target }) => target))
  return { ...PROTECTION, pinned: [...new Set(pinned)].filter((path) => path !== '' && !closes.has(path)) }
}
