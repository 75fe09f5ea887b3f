import {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  connect,
  type IncomingHttpHeaders,
} from 'node:http2'
import { SandboxError } from '../../model/errors.ts'
import { isLoopbackName } from './loopback.ts'

/** The address of a gRPC server, and our credentials. */
export type GrpcAddress = {
  readonly url: string
  readonly token?: string | undefined
  readonly ca?: Buffer | undefined
  readonly cert?: Buffer | undefined
  readonly key?: Buffer | undefined
}

const HEAD = 5
const MAX_MESSAGE = 16 * 1024 * 1024

/** A bidirectional call. */
export type GrpcCall = {
  readonly messages: AsyncIterable<Buffer>
  write(message: Uint8Array): Promise<void>
  end(): void
  cancel(): void
}

/** The subset of gRPC that a client needs: unary and streaming calls, uncompressed. */
export class GrpcChannel {
  readonly #address: GrpcAddress
  #session: ClientHttp2Session | undefined

  constructor(address: GrpcAddress) {
    const { protocol, hostname } = new URL(address.url)
    if (protocol !== 'https:' && protocol !== 'http:')
      throw new SandboxError('invalid-input', `\`${address.url}\` is not a gateway URL`)
    // SECURITY: a token in plain text can be read by everyone on the network.
    if (protocol === 'http:' && address.token !== undefined && !isLoopbackName(hostname))
      throw new SandboxError('invalid-input', 'a token may be sent to another machine only over https')
    this.#address = address
  }

  async unary(method: string, message: Uint8Array, timeoutMs: number): Promise<Buffer> {
    const call = this.open(method, AbortSignal.timeout(timeoutMs))
    await call.write(message)
    call.end()
    let answer: Buffer | undefined
    for await (const one of call.messages) answer ??= one
    if (!answer) throw new SandboxError('fetch-failed', `the gateway sent no response to ${lastOf(method)}`)
    return answer
  }

  open(method: string, signal?: AbortSignal): GrpcCall {
    const stream = this.#connected().request({
      ':method': 'POST',
      ':path': `/${method}`,
      'content-type': 'application/grpc+proto',
      te: 'trailers',
      ...(this.#address.token === undefined ? {} : { authorization: `Bearer ${this.#address.token}` }),
    })
    const cancel = (): void => stream.close(8)
    signal?.addEventListener('abort', cancel, { once: true })
    if (signal?.aborted) cancel()
    // The reader of the messages gets the error.
    stream.on('error', () => {})
    stream.on('close', () => signal?.removeEventListener('abort', cancel))
    return {
      messages: messagesOf(stream, lastOf(method), () => signal?.aborted ?? false),
      write: (message) => written(stream, message),
      end: () => stream.end(),
      cancel,
    }
  }

  close(): void {
    this.#session?.destroy()
    this.#session = undefined
  }

  #connected(): ClientHttp2Session {
    if (this.#session && !this.#session.closed && !this.#session.destroyed) return this.#session
    const { url, ca, cert, key } = this.#address
    const session = connect(new URL(url).origin, {
      ...(ca && { ca }),
      ...(cert && { cert }),
      ...(key && { key }),
    })
    session.on('error', () => {})
    // An idle channel does not keep the process alive.
    session.unref()
    this.#session = session
    return session
  }
}

const lastOf = (method: string): string => method.slice(method.lastIndexOf('/') + 1)

function written(stream: ClientHttp2Stream, message: Uint8Array): Promise<void> {
  const head = Buffer.alloc(HEAD)
  head.writeUInt32BE(message.length, 1)
  return new Promise((resolve, reject) => {
    if (stream.destroyed || stream.writableEnded)
      reject(new SandboxError('wrong-state', 'the command has closed its standard input'))
    else stream.write(Buffer.concat([head, message]), (error) => (error ? reject(error) : resolve()))
  })
}

type Status = { code?: string; message?: string; http?: number }

/** SECURITY: every length is checked before use; a stream without a final status is a failure. */
async function* messagesOf(
  stream: ClientHttp2Stream,
  method: string,
  isTimedOut: () => boolean,
): AsyncGenerator<Buffer> {
  const status: Status = {}
  const note = (headers: IncomingHttpHeaders): void => {
    if (headers[':status'] !== undefined) status.http = Number(headers[':status'])
    if (headers['grpc-status'] !== undefined) status.code = String(headers['grpc-status'])
    if (headers['grpc-message'] !== undefined) status.message = decoded(String(headers['grpc-message']))
  }
  stream.on('response', note)
  stream.on('trailers', note)
  let rest: Buffer = Buffer.alloc(0)
  try {
    for await (const chunk of stream) {
      rest = rest.length === 0 ? (chunk as Buffer) : Buffer.concat([rest, chunk as Buffer])
      while (rest.length >= HEAD) {
        const length = rest.readUInt32BE(1)
        if (rest[0] !== 0 || length > MAX_MESSAGE)
          throw new Error('a message that is too large or compressed')
        if (rest.length < HEAD + length) break
        const message = rest.subarray(HEAD, HEAD + length)
        rest = rest.subarray(HEAD + length)
        yield message
      }
    }
  } catch (error) {
    throw lost(method, isTimedOut(), error)
  } finally {
    stream.close(8)
  }
  if (status.code !== '0') throw refusal(method, status, isTimedOut())
}

function lost(method: string, timedOut: boolean, error: unknown): SandboxError {
  if (timedOut) return new SandboxError('timeout', `the gateway did not answer ${method} in time`)
  const { code, message } = error as NodeJS.ErrnoException
  return new SandboxError('unreachable', `the gateway is gone: ${code ?? message}`, { cause: error })
}

/** Translates a gRPC status code to an error. */
function refusal(method: string, { code, message = '', http }: Status, timedOut: boolean): SandboxError {
  if (timedOut || code === '4')
    return new SandboxError('timeout', `the gateway did not answer ${method} in time`)
  const said = message ? `: ${message.slice(0, 300)}` : ''
  if (code === '16' || code === '7')
    return new SandboxError('fetch-failed', `the gateway refused ${method}${said}`, {
      hint: 'use a valid token or client certificate',
    })
  if (code === '5') return new SandboxError('not-found', `not found by the gateway (${method})${said}`)
  if (code === '12') return new SandboxError('unsupported', `the gateway does not implement ${method}`)
  if (code === undefined)
    return new SandboxError(
      'unreachable',
      `the gateway sent no response to ${method} (${http ?? 'no status'})`,
    )
  return new SandboxError('fetch-failed', `the gateway failed ${method} (${code})${said}`)
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}
