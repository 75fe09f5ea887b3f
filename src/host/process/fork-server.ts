import type { Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { isMainThread } from 'node:worker_threads'
import { LateStream } from '../broker/late-stream.ts'
import { RemoteChild } from '../broker/remote-child.ts'
import { type Frame, FrameReader, fieldsOf, frame, numberFrame } from '../guest/frames.ts'
import { endOrphanProcesses } from './orphans.ts'
import { type Child, type Launch, type OnTunnel, serveHandedOver, startForkServerProcess } from './spawn.ts'

/** How long a fork server without launchers is kept. */
const IDLE_MS = 10_000
/** The agent accepts larger frames; a launch that is larger than this is started without it. */
const MAX_LAUNCH = 1024 * 1024
const [STDERR, CONTROL] = [2, 3]
/** Launchers take a moment to end; how often, and how many times at least, is looked for what they left. */
const ORPHAN_MS = 100
const ORPHAN_LOOKS = 5
const NOTHING = new Uint8Array()

type Message = { readonly id: number; readonly pid: number; readonly isListener: boolean }

/**
 * Starts launchers by a small process of ours (guest/agent/launch/fork_server.c): a fork of Node takes milliseconds, in which it
 * does nothing else. A sandbox's processes end with the fork server, and that ends with this process.
 */
class ForkServer {
  readonly #process: ReturnType<typeof startForkServerProcess>
  readonly #requests: Duplex
  readonly #reader = new FrameReader()
  readonly #children = new Map<number, RemoteChild>()
  #last = 0
  #idle: NodeJS.Timeout | undefined
  isOver = false

  constructor(agent: string) {
    this.#process = startForkServerProcess(agent)
    this.#requests = this.#process.stdio[4] as Duplex
    this.#process.on('message', (message: Message, handle) => this.#receive(message, handle as unknown))
    this.#process.once('error', ({ errno = 0 }: NodeJS.ErrnoException) =>
      this.#over((child) => child.failed(-errno)),
    )
    this.#process.once('exit', () => this.#over((child) => child.lost()))
    this.#requests.on('error', () => {})
    this.#requests.once('close', () => this.#unreachable())
    this.#requests.on('data', (chunk: Uint8Array) => {
      for (const one of this.#reader.push(chunk)) this.#hear(one)
    })
    this.#rest()
  }

  start({ file, env, contents = NOTHING }: Launch, onTunnel: OnTunnel): Child {
    const id = ++this.#last
    const streams = [null, null, new LateStream(), new LateStream()]
    const child = new RemoteChild(file, streams, (signal) =>
      this.#requests.write(numberFrame('signal', id, signal)),
    )
    if (onTunnel) serveHandedOver(child, onTunnel)
    child.once('close', () => this.#forget(id))
    child.once('error', () => this.#forget(id))
    this.#children.set(id, child)
    this.#work()
    const variables = Object.entries(env).map(([name, value]) => `${name}=${value}`)
    const fields = [onTunnel ? 'handover' : 'control', String(contents.length), ...variables]
    this.#requests.write(frame('command', id, Buffer.concat([fieldsOf(fields), contents])))
    return child
  }

  /** A launcher's control channel, or the listening socket of its proxy: without a free descriptor, either can be lost. */
  #receive({ id, pid, isListener }: Message, handle: unknown): void {
    const child = this.#children.get(id)
    if (isListener) {
      if (child) child.emit('message', 'proxy', handle)
      else (handle as { close(): void }).close()
      return
    }
    const socket = handle as Socket
    socket.on('error', () => {})
    if (!child) return void socket.destroy()
    child.started(pid)
    child.stdio[CONTROL]?.attach(socket, NOTHING)
  }

  #hear(heard: Frame): void {
    const child = this.#children.get(heard.id)
    if (heard.kind === 'stderr') child?.stdio[STDERR]?.push(heard.bytes)
    else if (heard.kind === 'end') child?.stdio[STDERR]?.conclude()
    else if (heard.kind === 'refused') child?.failed(Number(heard.text))
    else if (heard.kind === 'exit') child?.exited(heard.signaled ? heard.code : heard.code << 8)
    else this.#process.kill('SIGKILL')
  }

  #forget(id: number): void {
    this.#children.delete(id)
    if (this.#children.size === 0) this.#rest()
  }

  /** While it has launchers, it keeps this process alive as a child would. */
  #work(): void {
    clearTimeout(this.#idle)
    for (const one of this.#parts()) one?.ref?.()
  }

  #rest(): void {
    for (const one of this.#parts()) one?.unref?.()
    clearTimeout(this.#idle)
    this.#idle = setTimeout(() => this.#end(), IDLE_MS)
    this.#idle.unref()
  }

  #parts() {
    type Referenced = { ref?(): void; unref?(): void } | null | undefined
    return [this.#process, this.#process.channel, this.#requests as Referenced]
  }

  /** It exits when it has read the end of its requests. */
  #end(): void {
    this.isOver = true
    this.#requests.end()
  }

  /** It hears nothing any more, also before its exit is known: what comes next is for another one. */
  #unreachable(): void {
    this.isOver = true
    this.#process.kill('SIGKILL')
  }

  /** The kernel kills the launchers with their parent. */
  #over(tell: (child: RemoteChild) => void): void {
    const wasEnding = this.isOver && this.#children.size === 0
    this.isOver = true
    clearTimeout(this.#idle)
    this.#requests.destroy()
    for (const child of [...this.#children.values()]) tell(child)
    if (!wasEnding) this.#endOrphans()
  }

  /** A launcher that is killed while it starts bubblewrap can leave a process that keeps the launcher's channels open. */
  #endOrphans(): void {
    let looks = 0
    const look = (): void => {
      endOrphanProcesses()
      if (++looks < ORPHAN_LOOKS || this.#children.size > 0) setTimeout(look, ORPHAN_MS).unref()
    }
    look()
  }
}

/** By the path of the agent. */
const servers = new Map<string, ForkServer>()
const started = new Set<string>()

/**
 * Starts a launcher by the fork server; undefined if it has to be started as a child of this process: a program that opens a single
 * sandbox would only wait for one process more.
 * PLATFORM: Node never reaps a child that outlives the worker thread that started it, so worker threads do without.
 */
export function startByForkServer(launch: Launch, onTunnel: OnTunnel): Child | undefined {
  if (!launch.isLauncher || !isMainThread || sizeOf(launch) > MAX_LAUNCH) return undefined
  const { file } = launch
  if (!started.has(file)) return void started.add(file)
  let server = servers.get(file)
  if (!server || server.isOver) {
    server = new ForkServer(file)
    servers.set(file, server)
  }
  return server.start(launch, onTunnel)
}

const sizeOf = ({ env, contents }: Launch): number =>
  Object.entries(env).reduce(
    (sum, [name, value]) => sum + name.length + 3 * value.length + 2,
    contents?.length ?? 0,
  )
