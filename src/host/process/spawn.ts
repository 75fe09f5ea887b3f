import { type ChildProcess, type StdioOptions, spawn } from 'node:child_process'
import type { Duplex } from 'node:stream'
import { SandboxError } from '../../model/errors.ts'
import { serveSocket } from '../net/loopback.ts'

/** The only module that starts processes; `run.ts` and `channel-process.ts` give them limits and channels. */
export type Child = ChildProcess

/** A process to start, complete: nothing is inherited but what stands here. */
export type Launch = {
  readonly file: string
  readonly args: readonly string[]
  readonly env: Readonly<Record<string, string>>
  readonly cwd?: string
  /** Descriptor 3 is a control channel to a guest agent. */
  readonly control: boolean
  /** Bytes that the agent reads from the descriptor after its channels, until their end. */
  readonly contents?: Uint8Array | undefined
}

/** Gets each connection to the proxy, where a guest agent hands its listening socket over on descriptor 4. */
export type OnTunnel = ((stream: Duplex) => void) | undefined

type Stdio = 'inherit' | 'ignore' | 'pipe' | number

/**
 * Starts a process in a process group of its own, so that a kill while it starts other processes takes them along.
 * Throws when there is no process; too long or impossible arguments are refused on the spot.
 */
export function spawnChild(launch: Launch, streams: readonly Stdio[], onTunnel?: OnTunnel): Child {
  const { file, args, env, cwd, control } = launch
  const child = born(
    launch,
    spawn(file, args, {
      env: env as NodeJS.ProcessEnv,
      ...(cwd === undefined ? {} : { cwd }),
      stdio: [...streams, ...(control ? channels(launch, onTunnel) : [])] as StdioOptions,
      detached: true,
    }),
  )
  if (control) sendContents(launch, child)
  if (control && onTunnel) serveHandedOver(child, onTunnel)
  return child
}

/** From descriptor 3 on: the control channel, where a listening socket comes from, and where contents are read. */
const channels = ({ contents }: Launch, onTunnel: OnTunnel): ('pipe' | 'ipc')[] => [
  'pipe',
  ...(onTunnel ? (['ipc'] as const) : []),
  ...(contents ? (['pipe'] as const) : []),
]

/** The child says itself when it misses some of it. */
function sendContents({ contents }: Launch, child: ChildProcess): void {
  if (!contents) return
  const stream = child.stdio.at(-1) as Duplex | null | undefined
  stream?.on('error', () => {})
  stream?.end(contents, () => stream.destroy())
}

/**
 * Serves the listening socket that a child made in its own network, for as long as the child lives: no byte of a
 * connection goes through the child.
 * SECURITY: it comes before anything of a guest runs, and then the child closes the channel.
 * PLATFORM: we do not; a child whose channel was closed on this side never says that it is gone.
 */
function serveHandedOver(child: ChildProcess, onTunnel: NonNullable<OnTunnel>): void {
  child.once('message', (_letter, socket) => {
    // SECURITY: to listen on nothing is to listen on every address.
    if (socket === undefined) {
      child.emit('error', new Error('its listening socket did not come'))
      return
    }
    const close = serveSocket(socket, onTunnel)
    if (child.exitCode === null && child.signalCode === null) child.once('exit', close)
    else close()
  })
}

export const failure = ({ file }: Launch, cause: Error): SandboxError =>
  new SandboxError('launch-failed', `cannot start ${file}: ${cause.message}`, { cause })

/** PLATFORM: without a free descriptor Node returns a child that has no streams, and says why only later. */
function born(launch: Launch, child: ChildProcess): ChildProcess {
  if ((child.stdio as unknown) !== undefined) return child
  child.on('error', () => {})
  throw failure(launch, new Error('too many open files'))
}
