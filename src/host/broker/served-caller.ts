import { AsyncLocalStorage } from 'node:async_hooks'
import type { Readable } from 'node:stream'
import type { Child, Launch } from '../process/spawn.ts'

/** The caller of a request to the broker, in whose place this process works: its streams, directory and variables. */
export type ServedCaller = {
  readonly env: Readonly<Record<string, string>>
  readonly cwd: string
  /** Whether standard input, output and error are terminals. */
  readonly terminals: Readonly<Record<StandardStream, boolean>>
  readonly input: Readable
  /** Whether the caller has not moved to another cgroup than ours. */
  readonly sameCgroup: boolean
  /** Aborted when the caller has gone. */
  readonly gone: AbortSignal
  /** Must be called before anything is done that another process must not do again. */
  accept(): void
  /** False: the reader is slow; `drained` tells when it can take more. */
  write(stream: 'stdout' | 'stderr', bytes: string | Uint8Array): boolean
  drained(): Promise<void>
  /** Returns a function that removes the listener. */
  onSignal(listener: (signal: NodeJS.Signals) => void): () => void
  /** Starts a process as a child of the caller. */
  start(launch: Launch, streams: readonly ('inherit' | 'ignore' | 'pipe')[]): Child
}

type StandardStream = 'stdin' | 'stdout' | 'stderr'

const current = new AsyncLocalStorage<ServedCaller>()
let serves = false

/** The caller that the running code works for; undefined in a process that works for itself. */
export function servedCaller(): ServedCaller | undefined {
  const caller = current.getStore()
  // SECURITY: without its caller a request would use the broker's own streams, directory and variables.
  if (serves && !caller) throw new Error('the caller of this request is not known')
  return caller
}

/** Runs the work in the place of a caller. */
export const serving = <T>(caller: ServedCaller, work: () => T): T => current.run(caller, work)

/**
 * Makes this process one that works only for callers. Relative paths are then those of the caller: `path.resolve` asks
 * `process.cwd`.
 */
export function serveCallersOnly(): void {
  serves = true
  process.cwd = () => current.getStore()?.cwd ?? '/'
}
