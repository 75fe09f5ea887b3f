import { lstatSync } from 'node:fs'
import type { Protection } from '../model/plan.ts'

/**
 * git treats any directory as a repository, whatever its name, that has a HEAD and either objects and refs or a commondir
 * that refers to them. It runs the programs that the configuration there names. The guest agent uses the same rule
 * (guest/agent/supervise/path_rules.c).
 */
const PARTS: readonly string[] = ['HEAD', 'objects', 'refs', 'commondir']

/** Whether a name exists in a directory below the mount, without following symbolic links. Throws if that is unknown. */
export type Has = (directory: string, name: string) => boolean

const isWhole = (has: (part: string) => boolean): boolean =>
  has('HEAD') && (has('commondir') || (has('objects') && has('refs')))

/** Whether a change of this relative path would turn a directory into a repository, or modify one. */
export function touchesRepository(protection: Protection, relative: string, has: Has): boolean {
  const segments = relative.split('/').filter((segment) => segment !== '')
  try {
    return (
      completes(segments, has) || segments.some((_, start) => reachesInto(protection, segments, start, has))
    )
  } catch {
    // SECURITY: what cannot be checked (a path that is too long, a loop) is refused.
    return true
  }
}

function completes(segments: readonly string[], has: Has): boolean {
  const parent = segments.slice(0, -1)
  const added = PARTS.find((part) => part.toLowerCase() === segments.at(-1)?.toLowerCase())
  if (added === undefined || parent.at(-1)?.toLowerCase() === '.git') return false
  const here = (part: string): boolean => has(parent.join('/'), part)
  return !isWhole(here) && isWhole((part) => part === added || here(part))
}

function reachesInto({ inner }: Protection, segments: readonly string[], start: number, has: Has): boolean {
  const matches = inner
    .filter((pattern) => pattern.startsWith('.git/'))
    .some((pattern) =>
      pattern
        .slice(5)
        .split('/')
        .every((part, index) => part === segments[start + index]?.toLowerCase()),
    )
  return matches && isWhole((part) => has(segments.slice(0, start).join('/'), part))
}

/** Whether a directory is a repository by its shape. Throws if that is unknown. */
export const isRepository = (directory: string): boolean =>
  isWhole((part) => lstatSync(`${directory}/${part}`, { throwIfNoEntry: false }) !== undefined)

/** Whether removing this name could end that a directory is one, and with it the protection of its configuration. */
export const isRepositoryPart = (name: string): boolean =>
  PARTS.some((part) => part.toLowerCase() === name.toLowerCase())

/** For a directory open as `root`; the caller opened it without following symbolic links. */
export const hasBelow =
  (root: number): Has =>
  (directory, name) =>
    lstatSync(`/proc/self/fd/${root}/${directory}/${name}`, { throwIfNoEntry: false }) !== undefined
