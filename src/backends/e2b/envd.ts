import { signalNumber } from '../../host/process/signals.ts'
import { SandboxError } from '../../model/errors.ts'
import type { OutputStream } from '../backend.ts'
import type { RemoteEnd, RemoteLine } from '../remote/process.ts'
import type { RemoteRequest } from '../remote/sandbox.ts'
import { type E2bHandle, type E2bSettings, reached, refusalOf } from './account.ts'

const PORT = 49_983
const HEAD = 5
const END_OF_STREAM = 2
const MAX_MESSAGE = 16 * 1024 * 1024
/** The size of one message; the other side reads whole messages. */
const PIECE = 1024 * 1024

/** The address of the agent in one sandbox, and its access token. */
export type Envd = {
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
}

/** The address of a sandbox's own API. */
export function envdOf({ sandboxUrl, domain }: E2bSettings, { id, token, domain: own }: E2bHandle): Envd {
  return {
    url: sandboxUrl ?? `https://${PORT}-${id}.${own ?? domain}`,
    headers: {
      'e2b-sandbox-id': id,
      'e2b-sandbox-port': String(PORT),
      ...(token === undefined ? {} : { 'x-access-token': token }),
    },
  }
}

/** A unary call. */
export async function unary(envd: Envd, method: string, message: unknown): Promise<unknown> {
  const answer = await reached(`${envd.url}/${method}`, {
    method: 'POST',
    headers: { ...envd.headers, 'content-type': 'application/json', 'connect-protocol-version': '1' },
    body: JSON.stringify(message),
    signal: AbortSignal.timeout(60_000),
  })
  const text = await answer.text()
  if (!answer.ok) throw problemOf(answer.status, text)
  return JSON.parse(text)
}

type Problem = { readonly code?: unknown; readonly message?: unknown }

/** Translates an error of the agent. */
function problemOf(status: number, text: string): SandboxError {
  let problem: Problem = {}
  try {
    problem = JSON.parse(text) as Problem
  } catch {
    return refusalOf(status, text)
  }
  return typeof problem.code === 'string' ? errorOf(problem) : refusalOf(status, text)
}

function errorOf({ code, message }: Problem): SandboxError {
  const said = String(message ?? code).slice(0, 500)
  if (code === 'not_found') return new SandboxError('file-not-found', said)
  if (code === 'already_exists') return new SandboxError('file-exists', said)
  if (code === 'permission_denied')
    return new SandboxError('forbidden-command', `e2b rejected the request: ${said}`)
  if (code === 'unavailable') return new SandboxError('wrong-state', `the sandbox is gone: ${said}`)
  if (code === 'deadline_exceeded') return new SandboxError('timeout', said)
  return new SandboxError('invalid-input', `e2b rejected the request: ${said}`)
}

/** A streaming call. */
export async function* stream(
  envd: Envd,
  method: string,
  message: unknown,
  signal: AbortSignal,
): AsyncGenerator<Record<string, unknown>> {
  const body = Buffer.from(JSON.stringify(message))
  const head = Buffer.alloc(HEAD)
  head.writeUInt32BE(body.length, 1)
  const answer = await reached(`${envd.url}/${method}`, {
    method: 'POST',
    headers: {
      ...envd.headers,
      'content-type': 'application/connect+json',
      'connect-protocol-version': '1',
      'keepalive-ping-interval': '50',
    },
    body: Buffer.concat([head, body]),
    signal,
  })
  if (!answer.ok || !answer.body) throw problemOf(answer.status, await answer.text())
  yield* envelopes(answer.body)
}

/** SECURITY: the size of a message is limited, whatever its header claims. */
async function* envelopes(body: AsyncIterable<Uint8Array>): AsyncGenerator<Record<string, unknown>> {
  let rest: Buffer = Buffer.alloc(0)
  for await (const chunk of body) {
    rest = rest.length === 0 ? Buffer.from(chunk) : Buffer.concat([rest, chunk])
    while (rest.length >= HEAD) {
      const length = rest.readUInt32BE(1)
      if (length > MAX_MESSAGE) throw new SandboxError('fetch-failed', 'e2b sent a message that is too large')
      if (rest.length < HEAD + length) break
      const flags = rest.readUInt8(0)
      const message = JSON.parse(rest.subarray(HEAD, HEAD + length).toString('utf8')) as Record<
        string,
        unknown
      >
      rest = rest.subarray(HEAD + length)
      if (flags & END_OF_STREAM) {
        if (message.error) throw errorOf(message.error as Problem)
        return
      }
      yield message
    }
  }
  throw new SandboxError('unreachable', 'e2b closed the stream in the middle of a message')
}

type Event = {
  readonly start?: { readonly pid?: number }
  readonly data?: Partial<Record<OutputStream | 'pty', string>>
  readonly end?: { readonly exitCode?: number; readonly exited?: boolean; readonly status?: string }
}

/** One remote command, over `process.Process`. */
export class EnvdLine implements RemoteLine {
  readonly #envd: Envd
  readonly #request: RemoteRequest
  #pid = 0

  constructor(envd: Envd, request: RemoteRequest) {
    this.#envd = envd
    this.#request = request
  }

  async run(onPid: (pid: number) => void, stopped: AbortSignal): Promise<RemoteEnd> {
    const { argv, env, cwd, terminal, stdin } = this.#request
    const [cmd, ...args] = argv
    const process = { cmd, args, envs: env, cwd }
    const message = { process, stdin, ...(terminal ? { pty: { size: terminal } } : {}) }
    for await (const { event } of this.#events(message, stopped)) {
      const { start, data, end } = (event ?? {}) as Event
      if (start) {
        this.#pid = Number(start.pid ?? 0)
        onPid(this.#pid)
      }
      if (data) await this.#print(data)
      if (end) return endOf(end)
    }
    throw new SandboxError('unreachable', 'e2b ended the stream before the command ended')
  }

  /** A missing program ends with code 127 as in a shell; the other side reports it as an invalid request. */
  async *#events(message: unknown, stopped: AbortSignal): AsyncGenerator<Record<string, unknown>> {
    try {
      yield* stream(this.#envd, 'process.Process/Start', message, stopped)
    } catch (error) {
      const { message: said } = error as Error
      if (this.#pid !== 0 || !/no such file or|executable file not found/i.test(said)) throw error
      await this.#request.onOutput('stderr', Buffer.from(`${this.#request.argv[0]}: command not found\n`))
      yield { event: { end: { exitCode: 127, exited: true } } }
    }
  }

  async #print(data: NonNullable<Event['data']>): Promise<void> {
    for (const [stream, name] of [
      ['stdout', 'stdout'],
      ['stderr', 'stderr'],
      ['stdout', 'pty'],
    ] as const) {
      const text = data[name]
      if (typeof text === 'string') await this.#request.onOutput(stream, Buffer.from(text, 'base64'))
    }
  }

  async write(data: Uint8Array): Promise<void> {
    for (let at = 0; at < data.length; at += PIECE) {
      const piece = Buffer.from(data.subarray(at, at + PIECE)).toString('base64')
      await this.#ask('SendInput', { input: { [this.#request.terminal ? 'pty' : 'stdin']: piece } })
    }
  }

  endInput(): Promise<void> {
    return this.#ask('CloseStdin', {})
  }

  /** The other side supports only two signals. */
  signal(signal: NodeJS.Signals): Promise<void> {
    return this.#ask('SendSignal', {
      signal: signal === 'SIGKILL' ? 'SIGNAL_SIGKILL' : 'SIGNAL_SIGTERM',
    })
  }

  resize(cols: number, rows: number): Promise<void> {
    return this.#ask('Update', { pty: { size: { cols, rows } } })
  }

  async #ask(method: string, fields: Record<string, unknown>): Promise<void> {
    await unary(this.#envd, `process.Process/${method}`, { process: { pid: this.#pid }, ...fields })
  }
}

/** `exit status 3`, `signal: killed`, `signal: SIGTERM`. */
function endOf({ exitCode = 0, exited = true, status = '' }: NonNullable<Event['end']>): RemoteEnd {
  const name = /^signal: (\w+)/.exec(status)?.[1]
  if (exited || name === undefined) return { signaled: false, code: exitCode < 0 ? 1 : exitCode }
  const spelled: Readonly<Record<string, string>> = { killed: 'SIGKILL', terminated: 'SIGTERM' }
  return { signaled: true, code: signalNumber(spelled[name] ?? name) }
}
