import { SandboxError } from '../../model/errors.ts'
import type { Approver, CommandEnd, ToolSandbox } from '../tool-sandbox.ts'
import { HttpResponseReader } from './http-response.ts'
import { type Params, text } from './params.ts'
import type { Notify } from './processes.ts'

/** Codex's `http/request`: curl in the sandbox, so that the policy judges it and the proxy carries it. */

const MAX_BODY = 8 * 1024 * 1024
const MAX_TIME_MS = 120_000
const MAX_ERRORS = 4096

/** What a request needs of its session. */
export type RequestParts = {
  readonly sandbox: ToolSandbox
  readonly approver: Approver | undefined
  readonly notify: Notify
}

/** A request that runs: its answer, and the end of curl, which never rejects. */
export type RunningRequest = { readonly answer: Promise<object>; readonly ended: Promise<string | undefined> }

/** Sends one HTTP request from inside the sandbox. The answer is the whole response, or its head if the body is streamed. */
export async function startRequest(parts: RequestParts, params: Params): Promise<RunningRequest> {
  const isStreamed = params.streamResponse === true
  const isFollowing = params.redirectPolicy !== 'stop'
  const requestId = isStreamed ? text(params, 'requestId') : ''
  const deltas = new BodyDeltas(requestId, parts.notify)
  const reader = new HttpResponseReader(isFollowing, {
    maxBody: isStreamed ? Number.POSITIVE_INFINITY : MAX_BODY,
    body: isStreamed ? (bytes) => deltas.send(bytes) : undefined,
  })
  let said = ''
  const running = await parts.sandbox.start(argvOf(params, isFollowing, isStreamed), {
    ...bodyOf(params),
    timeoutMs: timeoutOf(params, isStreamed),
    approved: parts.approver,
    output(stream, chunk) {
      if (stream === 'stdout') return reader.push(chunk)
      if (said.length < MAX_ERRORS) said += Buffer.from(chunk).toString('utf8')
      return undefined
    },
  })
  const ended = running.ended.then(
    (end) => problemOf(end, reader, said),
    () => 'the request was lost',
  )
  const answer = isStreamed ? streamed(reader, ended, deltas) : buffered(reader, ended)
  return { answer, ended }
}

async function buffered(reader: HttpResponseReader, ended: RunningRequest['ended']): Promise<object> {
  const problem = await ended
  if (problem !== undefined) throw new SandboxError('unreachable', problem)
  return { ...reader.head, bodyBase64: reader.body.toString('base64') }
}

async function streamed(
  reader: HttpResponseReader,
  ended: RunningRequest['ended'],
  deltas: BodyDeltas,
): Promise<object> {
  const problem = await Promise.race([reader.headReady, ended])
  if (reader.head === undefined) throw new SandboxError('unreachable', problem ?? 'the request failed')
  void ended.then((error) => deltas.end(error))
  // The answer must come before the first part of the body.
  setImmediate(() => deltas.start())
  return { ...reader.head, bodyBase64: '' }
}

function argvOf(params: Params, isFollowing: boolean, isStreamed: boolean): readonly string[] {
  const url = text(params, 'url')
  if (!/^https?:\/\//.test(url))
    throw new SandboxError('invalid-input', '`url` must begin with http:// or https://')
  return [
    ...['curl', '-sS', '-i', '-N', '--suppress-connect-headers'],
    ...(isStreamed ? [] : ['--max-filesize', String(MAX_BODY)]),
    ...['-X', text(params, 'method'), ...(isFollowing ? ['-L', '--max-redirs', '5'] : [])],
    ...headersOf(params).flatMap(({ name, value }) => ['-H', `${name}: ${value}`]),
    ...(typeof params.bodyBase64 === 'string' ? ['--data-binary', '@-'] : []),
    ...['--', url],
  ]
}

/** A streamed answer, such as a stream of events, may last as long as the sandbox permits. */
function timeoutOf({ timeoutMs }: Params, isStreamed: boolean): number | undefined {
  if (typeof timeoutMs !== 'number') return isStreamed ? undefined : MAX_TIME_MS
  return isStreamed ? timeoutMs : Math.min(timeoutMs, MAX_TIME_MS)
}

function bodyOf({ bodyBase64 }: Params): { readonly stdin?: string } {
  if (typeof bodyBase64 !== 'string') return {}
  const bytes = Buffer.from(bodyBase64, 'base64')
  const stdin = bytes.toString('utf8')
  if (!Buffer.from(stdin, 'utf8').equals(bytes))
    throw new SandboxError('unsupported', 'request bodies that are not UTF-8 text are not supported')
  return { stdin }
}

type Header = { readonly name: string; readonly value: string }

function headersOf({ headers }: Params): readonly Header[] {
  return (Array.isArray(headers) ? (headers as readonly Params[]) : []).flatMap(
    ({ name, value, valueEnvVar }) => {
      // SECURITY: a header whose value is a variable of this machine would hand out the variable.
      if (valueEnvVar !== undefined && valueEnvVar !== null)
        throw new SandboxError('unsupported', 'headers from environment variables are not supported')
      return typeof name === 'string' && typeof value === 'string' ? [{ name, value }] : []
    },
  )
}

/** Why a request failed; `undefined` if the whole response arrived. */
function problemOf({ outcome }: CommandEnd, reader: HttpResponseReader, said: string): string | undefined {
  if (reader.isTooLarge) return `the response is larger than ${MAX_BODY} bytes`
  const isWhole = outcome.kind === 'exited' && outcome.code === 0 && reader.head !== undefined
  return isWhole ? undefined : said.trim().slice(0, 500) || 'the request failed'
}

/** The body of one streamed response as numbered notifications. */
class BodyDeltas {
  readonly #requestId: string
  readonly #notify: Notify
  #seq = 0
  #waiting: Uint8Array[] | undefined = []
  #markStarted: () => void = () => {}
  /** The body is held back until the head was answered. */
  readonly #started = new Promise<void>((resolve) => {
    this.#markStarted = resolve
  })
  #end: { readonly error: string | undefined } | undefined

  constructor(requestId: string, notify: Notify) {
    this.#requestId = requestId
    this.#notify = notify
  }

  start(): void {
    const waiting = this.#waiting ?? []
    this.#waiting = undefined
    for (const bytes of waiting) void this.send(bytes)
    this.#markStarted()
    if (this.#end) this.end(this.#end.error)
  }

  send(bytes: Uint8Array): unknown {
    if (!this.#waiting) return this.#tell(bytes, {})
    this.#waiting.push(bytes)
    return this.#started
  }

  /** The last notification. */
  end(error: string | undefined): void {
    if (this.#waiting) this.#end ??= { error }
    else void this.#tell(new Uint8Array(), { done: true, ...(error === undefined ? {} : { error }) })
  }

  #tell(bytes: Uint8Array, last: object): unknown {
    return this.#notify('http/request/bodyDelta', {
      requestId: this.#requestId,
      seq: ++this.#seq,
      deltaBase64: Buffer.from(bytes).toString('base64'),
      done: false,
      error: null,
      ...last,
    })
  }
}
