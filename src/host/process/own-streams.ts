import { fstatSync } from 'node:fs'
import type { ServedCaller } from '../broker/served-caller.ts'

/** Our own standard streams, for commands that cannot have them as descriptors. */

/** Whether standard input is a pipe, file or socket; a terminal needs one in the sandbox, and /dev/null is no input. */
export function hasOwnInput(): boolean {
  try {
    const stat = fstatSync(0)
    return stat.isFIFO() || stat.isFile() || stat.isSocket()
  } catch {
    return false
  }
}

/** A command that takes input. */
type InputTarget = {
  readonly result: Promise<unknown>
  /** Resolves when more can be written; rejects when the command reads no more. */
  write(data: Uint8Array): Promise<void>
  endInput(): void
}

/** Passes our standard input on to a command, as fast as it reads, until either has ended. */
export function passOwnInput(command: InputTarget): void {
  const stdin = process.stdin
  let writing = Promise.resolve()
  let isOver = false
  const stop = (): void => {
    isOver = true
    stdin.off('data', pass).off('end', end).pause()
  }
  const pass = (chunk: Buffer): void => {
    stdin.pause()
    writing = command.write(chunk)
    writing.then(() => isOver || stdin.resume(), stop)
  }
  // PLATFORM: a pipe reports its end while it is paused, and what was read last may not be written yet.
  const end = (): void => void writing.then(() => command.endInput()).catch(() => {})
  stdin.on('error', end).on('data', pass).on('end', end)
  command.result.then(stop, stop)
}

type OwnOutput = 'stdout' | 'stderr'
const full = new Map<OwnOutput, { readonly drained: Promise<void>; readonly done: () => void }>()
let dropsUnread = false

/** After an interruption nobody waits for a reader any more: output that an output of ours cannot take is dropped. */
export function dropUnreadOutput(): void {
  dropsUnread = true
  for (const { done } of full.values()) done()
}

/** Writes to an output of the caller that this process serves, or else to our own, as `writeOwn` does. */
export function passTo(
  caller: ServedCaller | undefined,
  stream: OwnOutput,
  chunk: Uint8Array,
): Promise<void> | undefined {
  if (!caller) return writeOwn(stream, chunk)
  return caller.write(stream, chunk) ? undefined : caller.drained()
}

/** Writes to one of our outputs; the promise resolves when more can be written, or when nobody reads it any more. */
function writeOwn(stream: OwnOutput, chunk: Uint8Array): Promise<void> | undefined {
  const output = stream === 'stdout' ? process.stdout : process.stderr
  if (dropsUnread && output.writableNeedDrain) return undefined
  if (output.write(chunk) || output.destroyed || dropsUnread) return undefined
  const known = full.get(stream)
  if (known) return known.drained
  let done = (): void => {}
  const drained = new Promise<void>((resolve) => {
    done = () => {
      output.off('drain', done).off('close', done).off('error', done)
      full.delete(stream)
      resolve()
    }
    output.on('drain', done).on('close', done).on('error', done)
  })
  full.set(stream, { drained, done })
  return drained
}
