import { type ChildProcess, type StdioOptions, spawn } from 'node:child_process'
import type { EventEmitter } from 'node:events'
import { constants } from 'node:os'
import type { Duplex, Readable, Writable } from 'node:stream'
import { SandboxError } from '../../model/errors.ts'
import { servedCaller } from '../broker/served-caller.ts'
import { serveSocket } from '../net/loopback.ts'

/** The only module that starts processes; `run.ts` and `channel-process.ts` give them limits and channels. */
export type Child = EventEmitter & {
  readonly pid?: number | undefined
  readonly exitCode: number | null
  readonly signalCode: NodeJS.Signals | null
  readonly stdin: Writable | null
  readonly stdout: Readable | null
  readonly stderr: Readable | null
  readonly stdio: readonly (Readable | Writable | null | undefined)[]
  /** Signals the process and all processes of its group; has no effect after their end. */
  killGroup(signal: NodeJS.Signals): void
}

/** A process to start; it inherits only what is listed here. */
export type Launch = {
  readonly file: string
  readonly args: readonly string[]
  readonly env: Readonly<Record<string, string>>
  readonly cwd?: string
  /** Descriptor 3 is a control channel to a guest agent. */
  readonly control: boolean
  /** The program is our launcher, which the fork server can start too. */
  readonly isLauncher?: boolean
  /** Bytes that the agent reads from the descriptor after its channels, until end of file. */
  readonly contents?: Uint8Array | undefined
}

/** Receives each connection to the proxy, if a guest agent hands over its listening socket on descriptor 4. */
export type OnTunnel = ((stream: Duplex) => void) | undefined

type Stdio = 'inherit' | 'ignore' | 'pipe' | number

/**
 * Starts a process in its own process group, so that a kill also reaches the processes that it starts meanwhile.
 * Throws if there is no process; arguments that are too long or invalid are rejected at once.
 */
export function spawnChild(launch: Launch, streams: readonly Stdio[], onTunnel?: OnTunnel): Child {
  const { file, args, env, cwd, control } = launch
  // What uses the streams of a caller is the caller's own child: it inherits everything else from there too.
  const caller = streams.includes('inherit') ? servedCaller() : undefined
  if (caller) return caller.start(forCaller(launch, onTunnel), streams as ('inherit' | 'ignore' | 'pipe')[])
  const child = withStreams(
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
  return Object.assign(child, { killGroup: (signal: NodeJS.Signals) => killGroupOf(child, signal) })
}

/** A front has no way to send a listening socket or the contents of files. */
function forCaller(launch: Launch, onTunnel: OnTunnel): Launch {
  if (launch.contents || onTunnel) throw failure(launch, new Error('not possible in a broker'))
  return launch
}

function killGroupOf({ pid }: ChildProcess, signal: NodeJS.Signals): void {
  try {
    if (pid !== undefined) process.kill(-pid, signal)
  } catch {
    // Already exited.
  }
}

/** The name by which the front's program knows that it shall listen for the broker. */
const LISTENER_NAME = 'ringfence-broker-listener'

/** Starts the process that listens for fronts and sends their connections as messages. */
export const startListenerProcess = (front: string, stateDir: string): ChildProcess =>
  spawn(front, [stateDir], { argv0: LISTENER_NAME, env: {}, stdio: ['ignore', 'ignore', 'ignore', 'ipc'] })

/** Starts the process that forks launchers: descriptors come as messages, everything else over descriptor 4. */
export const startForkServerProcess = (agent: string): ChildProcess =>
  withStreams(
    { file: agent, args: ['fork-server'], env: {}, control: false },
    spawn(agent, ['fork-server'], {
      env: {},
      cwd: '/',
      stdio: ['ignore', 'ignore', 'ignore', 'ipc', 'pipe'],
      detached: true,
    }),
  )

/** Runs a program of the user's own in our place at the terminal: same process group, same streams. Resolves with its exit code. */
export function runInForeground(
  file: string,
  args: readonly string[],
  env: Readonly<Record<string, string | undefined>>,
): Promise<number> {
  const child = spawn(file, args, { env: env as NodeJS.ProcessEnv, stdio: 'inherit' })
  return new Promise((resolve, reject) => {
    child.once('error', (cause) => reject(failure({ file, args, env: {}, control: false }, cause)))
    child.once('close', (code, signal) => resolve(code ?? 128 + (signal ? constants.signals[signal] : 0)))
  })
}

/** From descriptor 3 on: the control channel, the channel for a listening socket, and the contents. */
const channels = ({ contents }: Launch, onTunnel: OnTunnel): ('pipe' | 'ipc')[] => [
  'pipe',
  ...(onTunnel ? (['ipc'] as const) : []),
  ...(contents ? (['pipe'] as const) : []),
]

/** Sends the contents; the child reports an error if some of it is missing. */
function sendContents({ contents }: Launch, child: ChildProcess): void {
  if (!contents) return
  const stream = child.stdio.at(-1) as Duplex | null | undefined
  stream?.on('error', () => {})
  stream?.end(contents, () => stream.destroy())
}

/** A child that hands over a socket in a message. */
type Handing = EventEmitter & Pick<Child, 'exitCode' | 'signalCode'>

/**
 * Serves the listening socket that a child created in its own network namespace, for as long as the child lives: no byte
 * of a connection passes through the child.
 * SECURITY: the socket arrives before any guest code runs, and then the child closes the channel.
 * PLATFORM: this side keeps it open; Node does not report the exit of a child whose channel was closed on this side.
 */
export function serveHandedOver(child: Handing, onTunnel: NonNullable<OnTunnel>): void {
  child.once('message', (_letter, socket) => {
    // SECURITY: listening on an undefined handle would listen on every address.
    if (socket === undefined) {
      child.emit('error', new Error('the listening socket was not received'))
      return
    }
    const close = serveSocket(socket, onTunnel)
    if (child.exitCode === null && child.signalCode === null) child.once('exit', close)
    else close()
  })
}

/** The error for a process that could not be started. */
export const failure = ({ file }: Launch, cause: Error): SandboxError =>
  new SandboxError('launch-failed', `cannot start ${file}: ${cause.message}`, { cause })

/** PLATFORM: without a free descriptor Node returns a child without streams and reports the reason only later. */
function withStreams(launch: Launch, child: ChildProcess): ChildProcess {
  if ((child.stdio as unknown) !== undefined) return child
  child.on('error', () => {})
  throw failure(launch, new Error('too many open files'))
}
