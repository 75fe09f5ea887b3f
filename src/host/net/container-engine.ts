import { type ClientRequest, type IncomingMessage, request } from 'node:http'
import { Duplex } from 'node:stream'
import { SandboxError } from '../../model/errors.ts'

/**
 * A client for a container engine on its unix socket: Docker, or Podman with the same API. Written here, because twelve
 * calls do not need a library of sixty packages.
 *
 * SECURITY: the engine may be stopped, hung, slow or another program altogether. Every call has a deadline and a size
 * limit, and every failure is a named error: no command ever runs elsewhere instead.
 */
export type ContainerEngineOptions = {
  readonly socket: string
  /** For each call except loading an image. */
  readonly deadlineMs?: number
}

/** The answer of a container engine. */
export type EngineAnswer = { readonly status: number; readonly body: unknown }

type Call = {
  readonly method: 'GET' | 'POST' | 'DELETE' | 'HEAD'
  readonly path: string
  readonly body?: unknown
  readonly stream?: AsyncIterable<Uint8Array>
  readonly deadlineMs?: number
  readonly signal?: AbortSignal | undefined
}

const DEADLINE_MS = 20_000
const MAX_BODY = 8 * 1024 * 1024

/** A client for the API of Docker or Podman. */
export class ContainerEngine {
  readonly #parts: ContainerEngineOptions

  constructor(parts: ContainerEngineOptions) {
    this.#parts = parts
  }

  get socket(): string {
    return this.#parts.socket
  }

  /** One call with a JSON response. Throws for a status other than 2xx, except the ones that the caller expects. */
  async call(call: Call, expected: readonly number[] = []): Promise<EngineAnswer> {
    const { status, text } = await this.#exchange(call)
    const body = parsed(text)
    if ((status >= 200 && status < 300) || status === 304 || expected.includes(status))
      return { status, body }
    throw refusal(call, status, body)
  }

  /**
   * Takes over the connection to a container's standard streams: writes go to its standard input, reads come from its
   * standard output, and its standard error is kept separately.
   */
  attach(container: string): Promise<AttachedStream> {
    const path = `/containers/${container}/attach?stream=1&stdin=1&stdout=1&stderr=1`
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => outgoing.destroy(late('attach')), this.#deadline())
      const done = (): void => clearTimeout(timer)
      const outgoing = this.#request('POST', path, { Connection: 'Upgrade', Upgrade: 'tcp' })
      outgoing.on('upgrade', (_, socket, head) => {
        done()
        resolve(new AttachedStream(socket as Duplex, head))
      })
      outgoing.on('response', (answer: IncomingMessage) => {
        done()
        const refused = (text: string): void =>
          reject(refusal({ path }, answer.statusCode ?? 0, parsed(text)))
        readBody(answer).then(refused, () => refused(''))
      })
      outgoing.on('error', (error) => {
        done()
        reject(failure(error, this.#parts.socket))
      })
      outgoing.end()
    })
  }

  /** Follows the events of one container until the signal aborts. Used only for better error messages. */
  events(container: string, onEvent: (action: string) => void, signal: AbortSignal): void {
    const filters = encodeURIComponent(JSON.stringify({ container: [container] }))
    const outgoing = this.#request('GET', `/events?filters=${filters}`, {})
    outgoing.on('response', (answer) => {
      let rest = ''
      answer.setEncoding('utf8')
      answer.on('data', (chunk: string) => {
        const lines = (rest + chunk).split('\n')
        rest = (lines.pop() ?? '').slice(-MAX_EVENT)
        for (const line of lines) onEvent(actionOf(line))
      })
      answer.on('error', () => {})
    })
    outgoing.on('error', () => {})
    signal.addEventListener('abort', () => outgoing.destroy(), { once: true })
    outgoing.end()
  }

  #deadline(call?: Call): number {
    return call?.deadlineMs ?? this.#parts.deadlineMs ?? DEADLINE_MS
  }

  #request(method: string, path: string, headers: Record<string, string | number>): ClientRequest {
    return request({
      socketPath: this.#parts.socket,
      method,
      path,
      headers: { Host: 'engine', ...headers },
      // No keep-alive: a connection that the daemon closed meanwhile would fail an unrelated call.
      agent: false,
    })
  }

  #exchange(call: Call): Promise<{ readonly status: number; readonly text: string }> {
    const json = call.body === undefined ? undefined : Buffer.from(JSON.stringify(call.body))
    const headers: Record<string, string | number> = json
      ? { 'Content-Type': 'application/json', 'Content-Length': json.length }
      : call.stream
        ? { 'Content-Type': 'application/x-tar', 'Transfer-Encoding': 'chunked' }
        : {}
    return new Promise((resolve, reject) => {
      const outgoing = this.#request(call.method, call.path, headers)
      const timer = setTimeout(() => outgoing.destroy(late(call.path)), this.#deadline(call))
      const abort = (): void => void outgoing.destroy(new SandboxError('wrong-state', 'cancelled'))
      call.signal?.addEventListener('abort', abort, { once: true })
      const settle = (): void => {
        clearTimeout(timer)
        call.signal?.removeEventListener('abort', abort)
      }
      const fail = (error: Error): void => {
        settle()
        reject(failure(error, this.#parts.socket))
      }
      outgoing.on('error', fail)
      outgoing.on('response', (answer) => {
        readBody(answer).then((text) => {
          settle()
          resolve({ status: answer.statusCode ?? 0, text })
        }, fail)
      })
      if (call.stream) void send(outgoing, call.stream).catch((error: Error) => outgoing.destroy(error))
      else outgoing.end(json)
    })
  }
}

const MAX_EVENT = 64 * 1024

async function send(outgoing: ClientRequest, stream: AsyncIterable<Uint8Array>): Promise<void> {
  for await (const chunk of stream)
    if (!outgoing.write(chunk)) await new Promise<void>((resolve) => outgoing.once('drain', resolve))
  outgoing.end()
}

async function readBody(answer: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = []
  let size = 0
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    size += chunk.length
    if (size > MAX_BODY) throw unusable('its response is too long')
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString('utf8')
}

function parsed(text: string): unknown {
  if (text.trim() === '') return undefined
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

const actionOf = (line: string): string => {
  const event = parsed(line)
  const { Action } = (typeof event === 'object' && event !== null ? event : {}) as { Action?: unknown }
  return typeof Action === 'string' ? Action : ''
}

const oneLine = (text: string): string => text.replace(/[\p{Cc}\u2028\u2029]+/gu, ' ').slice(0, 300)

const unusable = (why: string): SandboxError =>
  new SandboxError('backend-unavailable', `the container engine cannot be used: ${oneLine(why)}`, {
    hint: 'check the engine: docker info, or systemctl status docker',
  })

const late = (path: string): SandboxError => unusable(`it did not answer \`${path.split('?')[0]}\` in time`)

function failure(error: Error, socket: string): SandboxError {
  if (error instanceof SandboxError) return error
  const { code } = error as NodeJS.ErrnoException
  if (code === 'ENOENT' || code === 'ECONNREFUSED')
    return new SandboxError('backend-unavailable', `no container engine listens on ${socket}`, {
      hint: 'apt-get install docker.io && systemctl start docker',
    })
  if (code === 'EACCES')
    return new SandboxError(
      'backend-unavailable',
      `this user may not use the container engine at ${socket}`,
      {
        hint: 'usermod -aG docker "$USER", then sign in again',
      },
    )
  return unusable(error.message)
}

function refusal(call: Pick<Call, 'path'>, status: number, body: unknown): SandboxError {
  const { message } = (typeof body === 'object' && body !== null ? body : {}) as { message?: unknown }
  const said = typeof message === 'string' ? message : `status ${status}`
  return new SandboxError(
    'launch-failed',
    `the container engine refused ${call.path.split('?')[0]}: ${oneLine(said)}`,
  )
}

const HEAD = 8
const MAX_SAID = 8192

/** The engine prefixes each chunk of output: stream (1 byte), zeros (3), length (4, big endian). */
export class AttachedStream extends Duplex {
  /** The output on standard error. */
  said = ''
  readonly #socket: Duplex
  #rest: Buffer

  constructor(socket: Duplex, head: Buffer) {
    super()
    this.#socket = socket
    this.#rest = head
    socket.on('data', (chunk: Buffer) => this.#take(chunk))
    socket.on('end', () => this.push(null))
    socket.on('close', () => this.destroy())
    socket.on('error', (error) => this.destroy(error))
    if (head.length > 0) queueMicrotask(() => this.#take(Buffer.alloc(0)))
  }

  #take(chunk: Buffer): void {
    this.#rest = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk])
    let at = 0
    while (this.#rest.length - at >= HEAD) {
      const length = this.#rest.readUInt32BE(at + 4)
      if (length > MAX_BODY || (this.#rest[at] as number) > 2) {
        this.destroy(new Error('the container engine sent an invalid chunk'))
        return
      }
      if (this.#rest.length - at < HEAD + length) break
      this.#give(this.#rest[at] as number, this.#rest.subarray(at + HEAD, at + HEAD + length))
      at += HEAD + length
    }
    this.#rest = this.#rest.subarray(at)
  }

  #give(stream: number, bytes: Buffer): void {
    if (stream === 2) this.said = (this.said + bytes.toString('utf8')).slice(0, MAX_SAID)
    else if (!this.push(Buffer.from(bytes))) this.#socket.pause()
  }

  override _read(): void {
    this.#socket.resume()
  }

  override _write(chunk: Buffer, _: BufferEncoding, done: (error?: Error | null) => void): void {
    this.#socket.write(chunk, done)
  }

  override _final(done: () => void): void {
    this.#socket.end(done)
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    this.#socket.destroy()
    done(error)
  }
}
