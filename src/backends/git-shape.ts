import { lstatSync } from 'node:fs'
import type { Protection } from '../model/plan.ts'

/**
 * git takes a directory for a repository, whatever it is called, that has a HEAD and either objects and refs or a commondir
 * that says where those are. It runs what the configuration there names. The guest agent judges the same
 * (guest/agent/supervise/path_rules.c).
 */
const PARTS: readonly string[] = ['HEAD', 'objects', 'refs', 'commondir']

/** Tells whether a name exists in a directory below the mount, without following links. */
export type Has = (directory: string, name: string) => boolean

const isWhole = (has: (part: string) => boolean): boolean =>
  has('HEAD') && (has('commondir') || (has('objects') && has('refs')))

/** Whether a change of this relative path would make a repository of a directory, or reach into one. */
export function touchesRepository(protection: Protection, relative: string, has: Has): boolean {
  const segments = relative.split('/').filter((segment) => segment !== '')
  return (
    completes(segments, has) || segments.some((_, start) => reachesInto(protection, segments, start, has))
  )
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

/** For a directory that is open as `root`; its path is looked up without links by whoever opened it. */
export const hasBelow =
  (root: number): Has =>
  (directory, name) => {
    try {
      return lstatSync(`/proc/self/fd/${root}/${directory}/${name}`, { throwIfNoEntry: false }) !== undefined
    } catch {
      // SECURITY: what cannot be looked at (too long, a loop) counts as there, so that the name is refused.
      return true
    }
  }
