import { SandboxError } from '../../model/errors.ts'

/** Where E2B is, and who asks. */
export type E2bSettings = {
  readonly apiKey: string
  readonly apiUrl: string
  /** One address for every sandbox; without it each has its own name below `domain`. */
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

/** A sandbox there, with the token that its own address asks for. */
export type E2bHandle = {
  readonly id: string
  readonly token: string | undefined
  readonly domain: string | undefined
}

/** The control plane, spoken by E2B's own package where it is installed and plainly otherwise. */
export interface E2bAccount {
  readonly spokenBy: 'sdk' | 'rest'
  check(signal: AbortSignal): Promise<void>
  create(wish: E2bCreateOptions, signal?: AbortSignal): Promise<E2bHandle>
  extend(id: string, timeoutMs: number): Promise<void>
  kill(id: string): Promise<void>
}

const ANSWER_MS = 30_000

/** SECURITY: what comes back becomes part of an address, so it has to look like one. */
function handleOf(id: unknown, token: unknown, domain: unknown): E2bHandle {
  if (typeof id !== 'string' || !/^[A-Za-z0-9-]{1,128}$/.test(id))
    throw new SandboxError('fetch-failed', 'e2b answered without the id of a sandbox')
  const isName = typeof domain === 'string' && /^[A-Za-z0-9.-]{1,253}(:\d{1,5})?$/.test(domain)
  return { id, token: typeof token === 'string' ? token : undefined, domain: isName ? domain : undefined }
}

/** Without the package: the four calls that are needed. */
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
    throw new SandboxError('fetch-failed', 'e2b answered something that is no JSON')
  }
}

/** SECURITY: the key is in a header, and no error of ours repeats headers. */
export async function reached(url: string, init: RequestInit & { duplex?: 'half' }): Promise<Response> {
  try {
    return await fetch(url, { ...init, redirect: 'error' })
  } catch (error) {
    const { code } = ((error as Error).cause ?? {}) as NodeJS.ErrnoException
    const { host } = new URL(url)
    throw new SandboxError('unreachable', `cannot reach e2b at \`${host}\`: ${code ?? (error as Error).name}`)
  }
}

/** Remembers the status, so that what is gone already counts as gone. */
class Refusal extends SandboxError {
  readonly status: number

  constructor(status: number, message: string, hint?: string) {
    super(status === 429 ? 'too-many-requests' : 'fetch-failed', message, hint ? { hint } : {})
    this.status = status
  }
}

export const isGone = (error: unknown): boolean =>
  error instanceof Refusal && (error.status === 404 || error.status === 502)

export function refusalOf(status: number, text: string): SandboxError {
  if (status === 401 || status === 403)
    return new Refusal(status, 'e2b refused the key', 'set E2B_API_KEY to a key that is in force')
  let said = ''
  try {
    said = String((JSON.parse(text) as { message?: unknown }).message ?? '')
  } catch {
    // A proxy's page says nothing that helps.
  }
  return new Refusal(status, `e2b refused (${status})${said ? `: ${said.slice(0, 300)}` : ''}`)
}

/** The part of E2B's package that is used; its shape is looked at before anything is trusted to it. */
type Sdk = {
  readonly Sandbox: {
    create(template: string, options: Record<string, unknown>): Promise<unknown>
    kill(id: string, options: Record<string, unknown>): Promise<unknown>
    setTimeout(id: string, ms: number, options: Record<string, unknown>): Promise<unknown>
  }
}

/** With E2B's own package, which knows how its control plane changed from version to version. */
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
