import { SandboxError } from '../model/errors.ts'
import type { Capture } from './capture.ts'
import type { CommandEnd, RunningToolCommand } from './tool-sandbox.ts'

/** Commands that keep running between tool calls. */

const MAX_RUNNING = 32
const KEPT = 64

/** A command that runs in the background of a session. */
export type Process = {
  readonly id: number
  readonly running: RunningToolCommand
  readonly output: Capture
  ended: CommandEnd | undefined
  failure: unknown
}

/** The background commands of a session, bounded in number. */
export class ProcessTable {
  #next = 1
  readonly #known = new Map<number, Process>()

  assertRoom(): void {
    const running = [...this.#known.values()].filter(isRunning).length
    if (running >= MAX_RUNNING)
      throw new SandboxError('resource-limit-exceeded', `${MAX_RUNNING} commands are already running`, {
        hint: 'stop one of them with `process_kill`',
      })
  }

  add(running: RunningToolCommand, output: Capture): Process {
    const process: Process = { id: this.#next++, running, output, ended: undefined, failure: undefined }
    running.ended.then(
      (ended) => {
        process.ended = ended
      },
      (error: unknown) => {
        process.failure = error
      },
    )
    this.#known.set(process.id, process)
    for (const [id, old] of this.#known) {
      if (this.#known.size <= KEPT) break
      if (!isRunning(old)) this.#known.delete(id)
    }
    return process
  }

  get(id: number): Process {
    const found = this.#known.get(id)
    if (found) return found
    const known = [...this.#known.keys()].join(', ')
    throw new SandboxError('not-found', `no process ${id}`, {
      hint: known ? `known: ${known}` : 'start one with `process_start`',
    })
  }

  clear(): void {
    this.#known.clear()
  }
}

/** Whether a background command still runs. */
export const isRunning = (process: Process): boolean =>
  process.ended === undefined && process.failure === undefined

/** Waits for output or exit, at most `ms`. */
export async function waitFor(process: Process, ms: number, signal?: AbortSignal): Promise<void> {
  const until = Date.now() + ms
  await settle()
  while (isRunning(process) && Date.now() < until && !signal?.aborted) {
    const pause = new Promise((resolve) => setTimeout(resolve, Math.min(50, ms)))
    await Promise.race([pause, process.running.ended.catch(() => {})])
    await settle()
  }
}

/** Waits briefly for the last output and the exit. */
const settle = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))
