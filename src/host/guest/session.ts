import type { Duplex } from 'node:stream'
import { SandboxError } from '../../model/errors.ts'
import {
  type Frame,
  FrameReader,
  fieldsFrame,
  frame,
  frameHead,
  type HostFrame,
  numberFrame,
  PROTOCOL_VERSION,
} from './frames.ts'
import { GuestProcess, type GuestRequest, verdict } from './process.ts'
import { READY_VERSION } from './protocol.ts'
import { GuestStream } from './stream.ts'

/** Receives the frames of one id. */
export interface FrameListener {
  hear(frame: Frame): void
  /** Called when the channel is closed. */
  lose(reason: string): void
}

/** Sends frames of a command or a stream on the shared channel. */
export interface FrameSender {
  send(type: HostFrame, id: number, payload?: Uint8Array): void
  /** Sends without a copy: the payload belongs to the channel until `sent` is called. */
  lend(type: HostFrame, id: number, payload: Uint8Array, sent: () => void): void
  sendNumber(type: HostFrame, id: number, value: number): void
  /** Counts bytes that wait for a reader, or fewer; false if too many wait in all streams. */
  countUnread(bytes: number): boolean
  forget(id: number): void
}

/** Takes a connection to the proxy. `secrets`: it comes from an isolated command, which may use only these. */
export type TunnelTaker = (stream: Duplex, secrets?: readonly string[]) => void

/** Ids from here on are the agent's: streams that the sandbox opened. */
const AGENT_IDS = 0x80000000
const MAX_TUNNELS = 4096
/** SECURITY: the limit of unsent data for an agent that does not read; each frame also costs its overhead. */
const MAX_UNSENT = 64 * 1024 * 1024
const FRAME_COST = 512
/** SECURITY: each of thousands of streams may have a window of bytes that nobody takes; together they are limited. */
const MAX_UNREAD = 64 * 1024 * 1024

/**
 * The host's side of the channel to a guest agent: many commands and streams at once.
 * SECURITY: all input is hostile. It can end its own sandbox and nothing else; memory is bounded by the windows.
 */
export class Session implements FrameSender {
  /** The layers that the agent read from the kernel. Rejects if the sandbox could not be set up. */
  readonly ready: Promise<ReadonlyMap<string, string>>
  /** Resolves with the reason when the channel is closed. */
  readonly ended: Promise<string>
  readonly #channel: Duplex
  readonly #reader = new FrameReader()
  readonly #listeners = new Map<number, FrameListener>()
  readonly #onTunnel: TunnelTaker | undefined
  #nextId = 1
  #tunnels = 0
  #unsent = 0
  #unread = 0
  #over: string | undefined
  #renewed: (() => void)[] = []
  #isReady: (status: ReadonlyMap<string, string>) => void = () => {}
  #isFailed: (error: Error) => void = () => {}
  #isEnded: (reason: string) => void = () => {}

  constructor(channel: Duplex, onTunnel?: TunnelTaker) {
    this.#channel = channel
    this.#onTunnel = onTunnel
    this.ready = new Promise((resolve, reject) => {
      this.#isReady = resolve
      this.#isFailed = reject
    })
    this.ready.catch(() => {})
    this.ended = new Promise((resolve) => {
      this.#isEnded = resolve
    })
    channel.on('data', (chunk: Uint8Array) => this.#take(chunk))
    channel.on('error', () => this.close('the channel to the sandbox broke'))
    channel.on('close', () => this.close('the sandbox ended'))
    channel.on('end', () => this.close('the sandbox ended'))
  }

  /** Starts a command; `started` resolves when its process exists. */
  start(request: GuestRequest): GuestProcess {
    const id = this.#newId()
    const guest = new GuestProcess(this, id, request)
    this.#listeners.set(id, guest)
    this.#write(fieldsFrame('command', id, request.fields))
    return guest
  }

  /** Stops or continues every process in the sandbox. */
  freeze(still: boolean): void {
    this.send('freeze', 0, Uint8Array.of(still ? 1 : 0))
  }

  /** The sandbox ends itself after this time unless the lease is renewed; 0: without end. */
  lease(ms: number): void {
    this.sendNumber('lease', 0, Math.min(0xffffffff, Math.ceil(ms)))
  }

  /** Gives a virtual machine its own identity and the current time. */
  async renew(identity: Uint8Array): Promise<void> {
    const done = new Promise<void>((resolve) => this.#renewed.push(resolve))
    this.send('identity', 0, identity)
    await Promise.race([done, this.ended])
    if (this.#over !== undefined) throw new SandboxError('wrong-state', `the sandbox is gone: ${this.#over}`)
  }

  /** Opens a byte stream to a port on the sandbox's loopback, or on that of an isolated command. */
  async connect(port: number, owner?: GuestProcess): Promise<Duplex> {
    const id = this.#newId()
    const stream = new GuestStream(this, id)
    this.#listeners.set(id, stream)
    const payload = Buffer.alloc(owner ? 6 : 2)
    payload.writeUInt16LE(port)
    if (owner) payload.writeUInt32LE(owner.id, 2)
    this.send('connect', id, payload)
    await stream.connected
    return stream
  }

  /** Closes the channel, which ends the agent and its sandbox. */
  close(reason = 'closed'): void {
    if (this.#over !== undefined) return
    this.#over = reason
    this.#channel.destroy()
    for (const listener of this.#listeners.values()) listener.lose(reason)
    this.#listeners.clear()
    this.#isFailed(new SandboxError('launch-failed', reason))
    this.#isEnded(reason)
  }

  send(type: HostFrame, id: number, payload?: Uint8Array): void {
    this.#write(frame(type, id, payload))
  }

  lend(type: HostFrame, id: number, payload: Uint8Array, sent: () => void): void {
    this.#channel.cork()
    this.#write(frameHead(type, id, payload.length))
    this.#write(payload, sent)
    this.#channel.uncork()
  }

  sendNumber(type: HostFrame, id: number, value: number): void {
    this.#write(numberFrame(type, id, value))
  }

  countUnread(bytes: number): boolean {
    this.#unread += bytes
    if (bytes <= 0 || this.#unread <= MAX_UNREAD) return true
    // A stream is not told when the last of its bytes are read.
    for (const one of this.#listeners.values()) if (one instanceof GuestStream) one.countUnread()
    return this.#unread <= MAX_UNREAD
  }

  forget(id: number): void {
    this.#listeners.delete(id)
    if (id >= AGENT_IDS) this.#tunnels--
  }

  #write(bytes: Uint8Array, sent?: () => void): void {
    if (this.#over !== undefined) return
    const cost = bytes.length + FRAME_COST
    this.#unsent += cost
    if (this.#unsent > MAX_UNSENT) this.close('the guest agent does not read')
    else
      this.#channel.write(bytes, () => {
        this.#unsent -= cost
        sent?.()
      })
  }

  #newId(): number {
    if (this.#over !== undefined) throw new SandboxError('wrong-state', `the sandbox is gone: ${this.#over}`)
    // Ids wrap around in long-lived sandboxes; an id in use is skipped.
    do this.#nextId = this.#nextId >= AGENT_IDS - 1 ? 1 : this.#nextId + 1
    while (this.#listeners.has(this.#nextId))
    return this.#nextId
  }

  #take(chunk: Uint8Array): void {
    try {
      for (const one of this.#reader.push(chunk)) this.#hear(one)
    } catch (error) {
      // A listener that throws ends this sandbox, not the process that manages all sandboxes.
      this.close(`the channel failed: ${(error as Error).message}`)
    }
  }

  #hear(one: Frame): void {
    // Frames received together with the end must not create anything.
    if (this.#over !== undefined) return
    if (one.kind === 'error') this.close(one.text)
    else if (one.kind === 'ready') this.#greet(one.status)
    else if (one.kind === 'renewed') this.#renewed.shift()?.()
    else if (one.kind === 'tunnel') this.#tunnel(one.id, one.command)
    else if (one.kind === 'sudo' && !this.#listeners.has(one.id))
      this.send('verdict', one.id, verdict(one.request.token, false))
    else this.#listeners.get(one.id)?.hear(one)
  }

  #greet(status: ReadonlyMap<string, string>): void {
    if (status.get(READY_VERSION) === PROTOCOL_VERSION) this.#isReady(status)
    else this.close('the guest agent has another version; run `npm run setup`')
  }

  /** SECURITY: a connection of an isolated command that has ended is nobody's. */
  #tunnel(id: number, command: number | undefined): void {
    const owner = command === undefined ? undefined : this.#listeners.get(command)
    const isNobodys = command !== undefined && !(owner instanceof GuestProcess)
    const refused =
      isNobodys ||
      !this.#onTunnel ||
      id < AGENT_IDS ||
      this.#listeners.has(id) ||
      this.#tunnels >= MAX_TUNNELS
    if (refused) {
      this.send('drop', id)
      return
    }
    const stream = new GuestStream(this, id)
    this.#tunnels++
    this.#listeners.set(id, stream)
    this.#onTunnel?.(stream, owner instanceof GuestProcess ? owner.secrets : undefined)
  }
}
