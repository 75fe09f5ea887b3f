import { lstatSync } from 'node:fs'
import type { Protection } from '../model/plan.ts'

/**
 * git takes a directory with these three for a repository, whatever it is called, and runs what its configuration names.
 * The guest agent judges the same (guest/agent/judge.c).
 */
const PARTS = ['head', 'objects', 'refs'] as const
const EXACT = ['HEAD', 'objects', 'refs'] as const

/** Tells whether a name exists in a directory below the mount, without following links. */
export type Has = (directory: string, name: string) => boolean

const partsIn = (directory: string, has: Has): number => EXACT.filter((name) => has(directory, name)).length

/** Whether a change of this relative path would make a repository of a directory, or reach into one. */
export function touchesRepository(protection: Protection, relative: string, has: Has): boolean {
  const segments = relative.split('/').filter((segment) => segment !== '')
  const parent = segments.slice(0, -1)
  const last = (segments.at(-1) ?? '').toLowerCase()
  const named = parent.at(-1)?.toLowerCase() === '.git'
  if ((PARTS as readonly string[]).includes(last) && !named) {
    const directory = parent.join('/')
    if (!has(directory, segments.at(-1) ?? '') && partsIn(directory, has) === 2) return true
  }
  return segments.some((_, start) => reachesInto(protection, segments, start, has))
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
  return matches && partsIn(segments.slice(0, start).join('/'), has) === PARTS.length
}

/** For a directory that is open as `root`; its path is looked up without links by whoever opened it. */
export const hasBelow =
  (root: number): Has =>
  (directory, name) => {
    try {
      return lstatSync(`/proc/self/fd/${root}/${directory}/${name}`, { throwIfNoEntry: false }) !== undefined
    } catch {
      return false
    }
  }
