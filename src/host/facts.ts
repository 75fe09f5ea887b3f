import { readdirSync } from 'node:fs'
import type { PathFact } from '../model/plan.ts'
import { observePath, type PathObservation, pathFactOf } from './walk.ts'

/** An observation with the fact that a mount carries, and what of the blocked names lies directly inside. */
export type HostPath = PathObservation & {
  readonly fact: PathFact | undefined
  readonly blockedInside: readonly HostPath[]
}

const mountable = ['dir', 'file', 'socket']

/** Observes one absolute path; `isBlocked` says which entries of a directory are of interest. */
export function hostPath(path: string, isBlocked: (name: string) => boolean = () => false): HostPath {
  const observation = observePath(path.startsWith('/') ? path : `/${path}`)
  const present = observation.state === 'exists' && mountable.includes(observation.thing.kind)
  const fact = present ? pathFactOf(observation) : undefined
  const inside = fact?.kind === 'dir' ? entriesOf(fact.real).filter(isBlocked) : []
  return { ...observation, fact, blockedInside: inside.map((name) => hostPath(`${fact?.real}/${name}`)) }
}

function entriesOf(directory: string): string[] {
  try {
    return readdirSync(directory)
  } catch {
    // Unreadable for us means unreadable for the sandbox, which has no more rights than we have.
    return []
  }
}
