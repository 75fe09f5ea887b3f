import { lstatSync, readdirSync, realpathSync, type Stats } from 'node:fs'
import { join, resolve } from 'node:path'
import type { PathFact } from '../../model/plan.ts'
import { readText } from '../system.ts'
import { observePath, type PathObservation, pathFactOf } from './walk.ts'

/** An observed path with its mount fact, and the blocked names directly inside it. */
export type HostPath = PathObservation & {
  readonly fact: PathFact | undefined
  readonly blockedInside: readonly HostPath[]
  readonly repositories: readonly string[]
}

const mountable = ['dir', 'file', 'socket']

/** Observes one absolute path; `isBlocked` selects the directory entries to report. */
export function hostPath(path: string, isBlocked: (name: string) => boolean = () => false): HostPath {
  const observation = observePath(path.startsWith('/') ? path : `/${path}`)
  const present = observation.state === 'exists' && mountable.includes(observation.thing.kind)
  const fact = present ? pathFactOf(observation) : undefined
  const inside = fact?.kind === 'dir' ? entriesOf(fact.real).filter(isBlocked) : []
  return {
    ...observation,
    fact,
    blockedInside: inside.map((name) => hostPath(`${fact?.real}/${name}`)),
    repositories: fact?.kind === 'dir' ? repositoriesOf(fact.real) : [],
  }
}

/** Follows git's pointers: `.git` as a symbolic link or as a file with `gitdir:`, and from there `commondir`. */
function repositoriesOf(directory: string): readonly string[] {
  const dot = join(directory, '.git')
  const stat = kindOf(dot)
  if (!stat || stat.isDirectory()) return []
  const named = stat.isFile() ? /^gitdir: (.*)$/m.exec(readText(dot) ?? '')?.[1] : dot
  const repository = named === undefined ? undefined : realOf(resolve(directory, named.trim()))
  if (!repository) return []
  const common = readText(join(repository, 'commondir'))?.trim()
  const shared = common === undefined ? undefined : realOf(resolve(repository, common))
  return shared ? [repository, shared] : [repository]
}

function kindOf(path: string): Stats | undefined {
  try {
    return lstatSync(path, { throwIfNoEntry: false })
  } catch {
    // A directory that we cannot read is rejected elsewhere, with a message.
    return undefined
  }
}

function realOf(path: string): string | undefined {
  try {
    return realpathSync(path)
  } catch {
    return undefined
  }
}

function entriesOf(directory: string): string[] {
  try {
    return readdirSync(directory)
  } catch {
    // Unreadable for us means unreadable for the sandbox, which has no more permissions than we have.
    return []
  }
}
