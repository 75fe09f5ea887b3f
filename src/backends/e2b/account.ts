import { SandboxError } from '../../model/errors.ts'

/** The address of E2B, and our credentials. */
export type E2bSettings = {
  readonly apiKey: string
  readonly apiUrl: string
  /** One URL for every sandbox; without it each sandbox has its own name below `domain`. */
  readonly sandboxUrl?: string | undefined
  readonly domain: string
  readonly template: string
}

type E2bCreateOptions = {
  readonly template: string
  readonly timeoutMs: number
  readonly internet: boolean
  readonly metadata: Readonly<Record<string, string>>
}

/** A remote sandbox, with the access token of its own address. */
export type E2bHandle = {
  readonly id: string
  readonly token: string | undefined
  readonly domain: string | undefined
}

/** E2B's control plane, through E2B's own package if it is installed and plain HTTP otherwise. */
export interface E2bAccount {
  readonly spokenBy: 'sdk' | 'rest'
  check(signal: AbortSignal): Promise<void>
  create(wish: E2bCreateOptions, signal?: AbortSignal): Promise<E2bHandle>
  extend(id: string, timeoutMs: number): Promise<void>
  kill(id: string): Promise<void>
}

const ANSWER_MS = 30_000

/** SECURITY: the id becomes part of a URL, so its format is checked. */
function handleOf(id: unknown, token: unknown, domain: unknown): E2bHandle {
  if (typeof id !== 'string' || !/^[A-Za-z0-9-]{1,128}$/.test(id))
    throw new SandboxError('fetch-failed', 'the response of e2b contains no sandbox id')
  const isName = typeof domain === 'string' && /^[A-Za-z0-9.-]{1,253}(:\d{1,5})?$/.test(domain)
  return { id, token: typeof token === 'string' ? token : undefined, domain: isName ? domain : undefined }
}

/** Implements the four required calls without E2B's package. */
export function restAccount(settings: E2bSettings): E2bAccount {
  const call = (method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<unknown> =>
    answerOf(settings, method, path, body, signal)
  return {
    spokenBy: 'rest',
    check: async (signal) => void (await call('GET', '/v2/sandboxes?limit=1', undefined, signal)),
    async create({ template, timeoutMs, internet, metadata }, signal) {
      const timeout = Math.ceil(timeoutMs / 1000)
      const wish = { templateID: template, timeout, secure: true, allow_internet_access: internet, metadata }
      const made = (await call('POST', '/sandboxes', wish, signal)) as Record<string, unknown> | undefined
      return handleOf(made?.sandboxID, made?.envdAccessToken, made?.domain)
    },
    extend: async (id, timeoutMs) =>
      void (await call('POST', `/sandboxes/${id}/timeout`, { timeout: Math.ceil(timeoutMs / 1000) })),
    async kill(id) {
      await call('DELETE', `/sandboxes/${id}`).catch((error: unknown) => {
        if (!isGone(error)) throw error
      })
    },
  }
}

async function answerOf(
  { apiUrl, apiKey }: E2bSettings,
  method: string,
  path: string,
  body: unknown,
  signal: AbortSignal | undefined,
): Promise<unknown> {
  const answer = await reached(`${apiUrl}${path}`, {
    method,
    headers: { 'x-api-key': apiKey, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
    signal: AbortSignal.any([AbortSignal.timeout(ANSWER_MS), ...(signal ? [signal] : [])]),
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  })
  const text = await answer.text()
  if (!answer.ok) throw refusalOf(answer.status, text)
  try {
    return text === '' ? undefined : JSON.parse(text)
  } catch {
    throw new SandboxError('fetch-failed', 'the response of e2b is not JSON')
  }
}

/** SECURITY: the key is in a header, and our errors never repeat headers. */
export async function reached(url: string, init: RequestInit & { duplex?: 'half' }): Promise<Response> {
  try {
    return await fetch(url, { ...init, redirect: 'error' })
  } catch (error) {
    const { code } = ((error as Error).cause ?? {}) as NodeJS.ErrnoException
    const { host } = new URL(url)
    throw new SandboxError('unreachable', `cannot reach e2b at \`${host}\`: ${code ?? (error as Error).name}`)
  }
}

/** Keeps the status, so that a sandbox that no longer exists counts as destroyed. */
class Refusal extends SandboxError {
  readonly status: number

  constructor(status: number, message: string, hint?: string) {
    super(status === 429 ? 'too-many-requests' : 'fetch-failed', message, hint ? { hint } : {})
    this.status = status
  }
}

/** Whether an error says that a sandbox does not exist any more. */
export const isGone = (error: unknown): boolean =>
  error instanceof Refusal && (error.status === 404 || error.status === 502)

/** The error for an answer of E2B's API. */
export function refusalOf(status: number, text: string): SandboxError {
  if (status === 401 || status === 403)
    return new Refusal(status, 'e2b rejected the key', 'set E2B_API_KEY to a valid key')
  let said = ''
  try {
    said = String((JSON.parse(text) as { message?: unknown }).message ?? '')
  } catch {
    // The HTML page of a proxy would not help.
  }
  return new Refusal(status, `e2b rejected the request (${status})${said ? `: ${said.slice(0, 300)}` : ''}`)
}

/** The part of E2B's package that is used; its shape is checked before use. */
type Sdk = {
  readonly Sandbox: {
    create(template: string, options: Record<string, unknown>): Promise<unknown>
    kill(id: string, options: Record<string, unknown>): Promise<unknown>
    setTimeout(id: string, ms: number, options: Record<string, unknown>): Promise<unknown>
  }
}

/** Uses E2B's own package, which handles the changes of its control plane between versions. */
export function sdkAccount(sdk: unknown, settings: E2bSettings): E2bAccount | undefined {
  if (!isSdk(sdk)) return undefined
  const { Sandbox } = sdk
  const { apiKey, apiUrl, sandboxUrl, domain } = settings
  const options = {
    apiKey,
    apiUrl,
    domain,
    requestTimeoutMs: ANSWER_MS,
    validateApiKey: false,
    ...(sandboxUrl && { sandboxUrl }),
  }
  return {
    spokenBy: 'sdk',
    check: restAccount(settings).check,
    create: ({ template, timeoutMs, internet, metadata }) =>
      told(async () => {
        const wish = { ...options, timeoutMs, allowInternetAccess: internet, metadata, secure: true }
        const made = (await Sandbox.create(template, wish)) as Record<string, unknown>
        return handleOf(made.sandboxId, made.envdAccessToken, made.sandboxDomain)
      }),
    extend: (id, ms) => told(async () => void (await Sandbox.setTimeout(id, ms, options))),
    kill: (id) => told(async () => void (await Sandbox.kill(id, options))),
  }
}

const isSdk = (value: unknown): value is Sdk => {
  const { Sandbox } = (value ?? {}) as { Sandbox?: Partial<Sdk['Sandbox']> }
  return [Sandbox?.create, Sandbox?.kill, Sandbox?.setTimeout].every((one) => typeof one === 'function')
}

async function told<T>(action: () => Promise<T>): Promise<T> {
  try {
    return await action()
  } catch (error) {
    const { name, message } = error as Error
    throw new SandboxError('fetch-failed', `e2b: ${name}: ${String(message).slice(0, 300)}`)
  }
}
