import { randomBytes } from 'node:crypto'
import type { Socket } from 'node:net'
import { PassThrough } from 'node:stream'
import { SandboxError } from '../../model/errors.ts'
import { signalName } from '../process/signals.ts'
import type { Child, Launch } from '../process/spawn.ts'
import {
  counted,
  type FrontFrame,
  type FrontReader,
  frontFrame,
  frontNumber,
  numberIn,
  outputFrames,
  StringReader,
  strings,
} from './frames.ts'
import { LateStream } from './late-stream.ts'
import { assertStartable } from './launch-size.ts'
import { RemoteChild } from './remote-child.ts'
import type { ServedCaller } from './served-caller.ts'

/** What a front asks for; the order of the strings is that of guest/front/request.c. */
export type FrontRequest = {
  readonly protocol: string
  readonly secret: string
  /** Tells one build from another. */
  readonly build: string
  readonly node: string
  readonly terminals: string
  readonly cwd: string
  readonly args: readonly string[]
  readonly env: Readonly<Record<string, string>>
}

/** Parses a request; throws if it is none. */
export function parseRequest(payload: Buffer): FrontRequest {
  const from = new StringReader(payload)
  const [protocol, secret, build] = [from.next(), from.next(), from.next()]
  const [node, terminals, cwd] = [from.next(), from.next(), from.next()]
  const args = from.list()
  const pairs = from.list().flatMap((entry): [string, string][] => {
    const at = entry.indexOf('=')
    return at < 0 ? [] : [[entry.slice(0, at), entry.slice(at + 1)]]
  })
  // As in Node, the first of two variables of the same name counts, and an entry without `=` is none.
  return { protocol, secret, build, node, terminals, cwd, args, env: Object.fromEntries(pairs.reverse()) }
}

/** Where the streams of launched processes are expected: token → stream for each descriptor. */
export type Attachments = Map<string, readonly (LateStream | null)[]>

/** The connection of one front: its request, and the caller that the command line works for. */
export class FrontConnection implements ServedCaller {
  readonly env: Readonly<Record<string, string>>
  readonly cwd: string
  readonly terminals: ServedCaller['terminals']
  readonly input = new PassThrough()
  readonly sameCgroup: boolean
  readonly #socket: Socket
  readonly #reader: FrontReader
  readonly #attachments: Attachments
  readonly #gone = new AbortController()
  readonly #listeners = new Set<(signal: NodeJS.Signals) => void>()
  readonly #tokens: string[] = []
  #child: RemoteChild | undefined
  #state: 'asked' | 'accepted' | 'done' = 'asked'

  constructor(
    socket: Socket,
    reader: FrontReader,
    request: FrontRequest,
    { sameCgroup, attachments }: { readonly sameCgroup: boolean; readonly attachments: Attachments },
  ) {
    this.#socket = socket
    this.#reader = reader
    this.#attachments = attachments
    this.sameCgroup = sameCgroup
    this.env = request.env
    this.cwd = request.cwd
    const [stdin, stdout, stderr] = [...request.terminals].map((letter) => letter === '1')
    this.terminals = { stdin: stdin === true, stdout: stdout === true, stderr: stderr === true }
    this.input.on('error', () => {})
    socket.on('data', (chunk: Uint8Array) => this.#hear(chunk))
    socket.on('close', () => this.#lost())
  }

  get gone(): AbortSignal {
    return this.#gone.signal
  }

  accept(): void {
    if (this.#state !== 'asked') return
    // A front that did not wait has left the work to Node.
    if (this.gone.aborted) throw new SandboxError('wrong-state', 'the caller has gone')
    this.#state = 'accepted'
    this.#socket.write(frontFrame('accepted'))
  }

  /** Ends the request: with the exit code, or, if nothing was accepted, by leaving it to Node. */
  finish(code: number): void {
    const wasAccepted = this.#state === 'accepted'
    this.#state = 'done'
    this.#socket.end(wasAccepted ? frontNumber('result', code) : frontFrame('declined'))
  }

  /** Before the request is accepted Node will print the same again, so nothing is printed. */
  write(stream: 'stdout' | 'stderr', bytes: string | Uint8Array): boolean {
    let hasRoom = true
    if (this.#state === 'accepted')
      for (const frame of outputFrames(stream, bytes)) hasRoom = this.#socket.write(frame)
    return hasRoom
  }

  drained(): Promise<void> {
    return new Promise((resolve) => {
      if (this.gone.aborted) return resolve()
      const done = (): void => {
        this.#socket.off('drain', done)
        this.gone.removeEventListener('abort', done)
        resolve()
      }
      this.#socket.on('drain', done)
      this.gone.addEventListener('abort', done)
    })
  }

  onSignal(listener: (signal: NodeJS.Signals) => void): () => void {
    this.#listeners.add(listener)
    return () => void this.#listeners.delete(listener)
  }

  start(launch: Launch, streams: readonly ('inherit' | 'ignore' | 'pipe')[]): Child {
    if (this.#child || this.#state !== 'accepted')
      throw new Error('a front starts one process, after it was accepted')
    assertStartable(launch)
    const kinds = [...streams, ...(launch.control ? (['pipe'] as const) : [])]
    const stdio = kinds.map((kind) => (kind === 'pipe' ? new LateStream() : null))
    const token = randomBytes(16).toString('hex')
    const child = new RemoteChild(launch.file, stdio, (signal) => {
      this.#socket.write(frontNumber('kill', signal))
    })
    this.#tokens.push(token)
    this.#attachments.set(token, stdio)
    this.#child = child
    const letters = kinds.map((kind) => ({ inherit: 'i', ignore: 'n', pipe: 'p' })[kind]).join('')
    const variables = Object.entries(launch.env).map(([name, value]) => `${name}=${value}`)
    const head = [launch.file, launch.cwd ?? this.cwd, token, letters]
    this.#socket.write(
      frontFrame(
        'launch',
        strings([...head, ...counted([launch.file, ...launch.args]), ...counted(variables)]),
      ),
    )
    if (this.gone.aborted) queueMicrotask(() => child.lost())
    return child
  }

  #hear(chunk: Uint8Array): void {
    try {
      this.#reader.add(chunk)
      for (let frame = this.#reader.next(); frame; frame = this.#reader.next()) this.#take(frame)
    } catch {
      this.#socket.destroy()
    }
  }

  #take(frame: FrontFrame): void {
    switch (frame.kind) {
      case 'input':
        if (frame.payload.length > 0) this.input.write(frame.payload)
        else this.input.end()
        return
      case 'signal':
        for (const listener of this.#listeners) listener(signalName(numberIn(frame)) as NodeJS.Signals)
        return
      case 'started':
        this.#child?.started(numberIn(frame))
        return
      case 'failed':
        this.#child?.failed(numberIn(frame))
        return
      case 'exited':
        this.#child?.exited(numberIn(frame))
        return
      default:
        throw new Error('a frame that a front does not send')
    }
  }

  #lost(): void {
    for (const token of this.#tokens) this.#attachments.delete(token)
    this.input.end()
    this.#child?.lost()
    this.#gone.abort()
  }
}
