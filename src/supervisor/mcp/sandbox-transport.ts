import type { JSONRPCMessage, ReadBuffer, Transport } from '@modelcontextprotocol/client'
import { SandboxError } from '../../model/errors.ts'
import { CollectedBytes } from '../../model/files/collected-bytes.ts'
import type { RunningExec } from '../sandbox.ts'

/** Messages per second that a server may send; more ends the connection. */
const MAX_MESSAGES = 1000
/** Lines that are not JSON-RPC; some programs print a banner. */
const MAX_STRAY_LINES = 100
const NEWLINE = 10
const TOO_LONG = 'the program sent a message that is too long'

/** Starts the program with its output going to `output`. */
type Start = (output: (stream: 'stdout' | 'stderr', chunk: Uint8Array) => void) => Promise<RunningExec>

/** MCP on the standard input and output of a program in a sandbox. Everything that the program sends is hostile. */
export class SandboxTransport implements Transport {
  onclose?: () => void
  onerror?: (error: Error) => void
  onmessage?: (message: JSONRPCMessage) => void
  readonly #start: Start
  readonly #buffer: ReadBuffer
  readonly #mostBytes: number
  #line = new CollectedBytes()
  #running: RunningExec | undefined
  #second = 0
  #messages = 0
  #stray = 0
  #closed = false
  /** Why the connection ended. */
  reason: string | undefined

  /** `mostBytes` is the longest line, and at least what `buffer` can hold. */
  constructor(start: Start, buffer: ReadBuffer, mostBytes: number) {
    this.#start = start
    this.#buffer = buffer
    this.#mostBytes = mostBytes
  }

  async start(): Promise<void> {
    const running = await this.#start((stream, chunk) => {
      if (stream === 'stdout') this.#take(chunk)
    })
    this.#running = running
    running.result.then(
      ({ outcome }) =>
        this.#end(
          `the program ended (${outcome.kind === 'exited' ? `exit code ${outcome.code}` : outcome.kind})`,
        ),
      (error: Error) => this.#end(error.message),
    )
  }

  async send(message: JSONRPCMessage): Promise<void> {
    if (this.#closed || !this.#running)
      throw new SandboxError('unreachable', this.reason ?? 'the program has ended')
    await this.#running.write(Buffer.from(`${JSON.stringify(message)}\n`))
  }

  async close(): Promise<void> {
    this.#end('closed')
  }

  /** SECURITY: only whole lines reach the buffer, because it joins and searches all that it holds at every chunk. */
  #take(chunk: Uint8Array): void {
    if (this.#closed) return
    const end = chunk.lastIndexOf(NEWLINE) + 1
    this.#line.add(end === 0 ? chunk : chunk.subarray(0, end))
    if (this.#line.size > this.#mostBytes) return void this.#end(TOO_LONG)
    if (end === 0) return
    const lines = this.#line.all()
    this.#line = new CollectedBytes()
    this.#line.add(chunk.subarray(end))
    this.#takeLines(Buffer.from(lines.buffer, lines.byteOffset, lines.length))
  }

  #takeLines(lines: Buffer): void {
    try {
      this.#buffer.append(lines)
    } catch {
      return void this.#end(TOO_LONG)
    }
    for (let isMore = true; isMore && !this.#closed; ) isMore = this.#next()
  }

  #next(): boolean {
    try {
      const message = this.#buffer.readMessage()
      if (message === null) return false
      if (this.#isFlood()) this.#end(`the program sent more than ${MAX_MESSAGES} messages in a second`)
      else this.onmessage?.(message)
    } catch {
      if (++this.#stray > MAX_STRAY_LINES) this.#end('the program prints something else than MCP messages')
    }
    return true
  }

  #isFlood(): boolean {
    const second = Math.floor(Date.now() / 1000)
    if (second !== this.#second) {
      this.#second = second
      this.#messages = 0
    }
    return ++this.#messages > MAX_MESSAGES
  }

  #end(reason: string): void {
    if (this.#closed) return
    this.#closed = true
    this.reason = reason
    this.#buffer.clear()
    this.#line = new CollectedBytes()
    this.#running?.signal('SIGKILL')
    this.onclose?.()
  }
}
