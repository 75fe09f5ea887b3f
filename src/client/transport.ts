import { ERRORS, type ErrorCode, SandboxError } from '../model/errors.ts'
import type { Problem } from './types.ts'

/** Only what browsers have: `fetch`, streams, timers. */
export type TransportOptions = {
  readonly url: string
  /** Absent only in the console's own page, which has a session. */
  readonly apiKey?: string
  /** Sent with every request. */
  readonly headers?: Readonly<Record<string, string>>
  readonly fetch?: typeof fetch
  /** How often something that is safe to repeat is repeated; 4 unless told. */
  readonly retries?: number
}

/** One HTTP request. */
export type Call = {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE'
  readonly path: string
  readonly query?: Readonly<Record<string, string | number | boolean | undefined>>
  readonly json?: unknown
  readonly bytes?: Uint8Array | ReadableStream<Uint8Array>
  readonly headers?: Readonly<Record<string, string>>
  readonly signal?: AbortSignal | undefined
  /** Repeating it does nothing twice. */
  readonly repeatable?: boolean
}

/** Busy, or gone for a moment. */
const PASSING = [429, 502, 503, 504]
const FIRST_PAUSE_MS = 100

/** Sends requests with a key and turns error answers into `SandboxError`. */
export class Transport {
  readonly #options: TransportOptions

  constructor(options: TransportOptions) {
    this.#options = { ...options, url: options.url.replace(/\/+$/, '') }
  }

  get url(): string {
    return this.#options.url
  }

  async json<T>(call: Call): Promise<T> {
    const response = await this.send(call)
    return (response.status === 204 ? undefined : await response.json()) as T
  }

  /** The answer, or the refusal as an error. */
  async send(call: Call): Promise<Response> {
    const tries = call.repeatable ? (this.#options.retries ?? 4) : 0
    for (let attempt = 0; ; attempt++) {
      const answer = await this.#attempt(call)
      if (answer instanceof Response && answer.ok) return answer
      const passing = !(answer instanceof Response) || PASSING.includes(answer.status)
      if (call.signal?.aborted || !passing || attempt >= tries)
        throw answer instanceof Response ? await errorOf(answer) : unreachable(this.url, answer)
      await pause(pauseMs(answer, attempt))
    }
  }

  async #attempt({ method, path, query, json, bytes, headers, signal }: Call): Promise<Response | Error> {
    const body = bytes ?? (json === undefined ? undefined : JSON.stringify(json))
    const init = {
      method,
      headers: {
        ...(this.#options.apiKey === undefined ? {} : { authorization: `Bearer ${this.#options.apiKey}` }),
        ...this.#options.headers,
        ...(json === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: body as string }),
      ...(bytes instanceof ReadableStream ? { duplex: 'half' as const } : {}),
      ...(signal ? { signal } : {}),
    }
    try {
      return await (this.#options.fetch ?? fetch)(`${this.url}${path}${queryText(query)}`, init)
    } catch (error) {
      return error as Error
    }
  }
}

function queryText(query: Call['query']): string {
  const pairs = Object.entries(query ?? {}).filter(([, value]) => value !== undefined)
  const text = new URLSearchParams(
    pairs.map(([name, value]): [string, string] => [name, String(value)]),
  ).toString()
  return text && `?${text}`
}

function pauseMs(answer: Response | Error, attempt: number): number {
  const told = answer instanceof Response ? Number(answer.headers.get('retry-after')) : 0
  // Uneven, so that many clients do not come back at once.
  return told > 0 ? told * 1000 : FIRST_PAUSE_MS * 2 ** attempt * (0.5 + Math.random())
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

function unreachable(url: string, cause: Error): SandboxError {
  const { code = '' } = (cause.cause ?? {}) as { readonly code?: string }
  if (/CERT|TLS|SIGNATURE/.test(code))
    return new SandboxError('unreachable', `the certificate of ${url} is not trusted (${code})`, {
      hint: "for a certificate of your own authority, set NODE_EXTRA_CA_CERTS to the file with the authority's certificate",
      cause,
    })
  return new SandboxError('unreachable', `the server at ${url} does not answer${code ? ` (${code})` : ''}`, {
    hint: 'is it running? see `ringfence serve` and RINGFENCE_URL',
    cause,
  })
}

/** The server's refusal as the error that it was there. */
async function errorOf(response: Response): Promise<SandboxError> {
  const problem = (await response.json().catch(() => ({}))) as Partial<Problem>
  return fromProblem(problem, response.status)
}

/** The error that a server's answer describes. */
export function fromProblem(problem: Partial<Problem>, status = 500): SandboxError {
  const known = problem.code !== undefined && Object.hasOwn(ERRORS, problem.code)
  const code: ErrorCode = known ? (problem.code as ErrorCode) : status === 404 ? 'not-found' : 'internal'
  return new SandboxError(code, problem.message ?? `the server answered ${status}`, {
    ...(problem.hint === undefined ? {} : { hint: problem.hint }),
    ...(problem.reasons === undefined ? {} : { reasons: problem.reasons }),
  })
}
