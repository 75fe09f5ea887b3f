import { Duplex } from 'node:stream'
import { startByForkServer } from './fork-server.ts'
import { type Child, failure, type Launch, type OnTunnel, spawnChild } from './spawn.ts'

/** A long-running process with a protocol on descriptor 3 or on its standard streams. */
export type ChannelProcess = {
  /** 0 until it has started. */
  readonly pid: number
  readonly channel: Duplex
  /** Resolves with its standard error when the process and its first children have exited. */
  readonly exited: Promise<{
    readonly code: number | null
    readonly signal: string | null
    readonly said: string
  }>
  readonly kill: () => void
}

const MAX_SAID = 8192

/** Starts a long-running process, such as a sandbox with its agent. */
export function startChannelProcess(launch: Launch, onTunnel?: OnTunnel): ChannelProcess {
  const child =
    startByForkServer(launch, onTunnel) ??
    spawnChild(launch, launch.control ? ['ignore', 'ignore', 'pipe'] : ['pipe', 'pipe', 'pipe'], onTunnel)
  const channel = launch.control ? (child.stdio[3] as Duplex) : standardStreams(child)
  return {
    get pid() {
      return child.pid ?? 0
    },
    channel,
    ...watched(launch, child),
  }
}

/** The exit with the beginning of standard error, and a function to kill the process. */
function watched(launch: Launch, child: Child): Pick<ChannelProcess, 'exited' | 'kill'> {
  let said = ''
  child.stderr?.on('data', (chunk: Buffer) => {
    if (said.length < MAX_SAID) said += chunk.toString('utf8')
  })
  const exited = new Promise<Awaited<ChannelProcess['exited']>>((resolve, reject) => {
    child.on('error', (cause) => reject(failure(launch, cause)))
    child.on('close', (code, signal) => resolve({ code, signal, said }))
  })
  exited.catch(() => {})
  return { exited, kill: () => child.killGroup('SIGKILL') }
}

/** A process with streams to us, or open files, on its descriptors from 3 on. */
export type StreamProcess = Omit<ChannelProcess, 'channel'> & { readonly streams: readonly Duplex[] }

/** Starts a long-running process with several channels, such as a hypervisor. */
export function startStreamProcess(
  launch: Launch,
  descriptors: readonly ('stream' | number)[],
): StreamProcess {
  const stdio = descriptors.map((one) => (one === 'stream' ? 'pipe' : one))
  const child = spawnChild({ cwd: '/', ...launch }, ['ignore', 'ignore', 'pipe', ...stdio])
  const streams = child.stdio.slice(3).filter((one) => one !== null && one !== undefined) as Duplex[]
  return { pid: child.pid ?? 0, streams, ...watched(launch, child) }
}

/** A companion process without a control channel uses its standard input and output. */
function standardStreams({ stdin, stdout }: Child): Duplex {
  stdin?.on('error', () => {})
  return Duplex.from({ readable: stdout as NodeJS.ReadableStream, writable: stdin as NodeJS.WritableStream })
}
