import { isLoopbackName } from '../../host/net/loopback.ts'
import { SandboxError } from '../../model/errors.ts'
import { isPlan, type Plan } from '../../model/plan.ts'
import type { Backend, BackendSandbox, GuestFiles, OpenOptions, Probe } from '../backend.ts'
import { streamOf } from '../remote/collect.ts'
import { refuseUnsendable, sendMounts } from '../remote/mounts.ts'
import { RemoteProcess } from '../remote/process.ts'
import { REMOTE_CLAIMS, type RemoteRequest, RemoteSandbox, type RemoteTransport } from '../remote/sandbox.ts'
import {
  type E2bAccount,
  type E2bHandle,
  type E2bSettings,
  isGone,
  restAccount,
  sdkAccount,
} from './account.ts'
import { EnvdLine, envdOf } from './envd.ts'
import { envdFiles } from './files.ts'

/** What the E2B backend is made of. */
export type E2bParts = {
  /** Absent: no key is configured. */
  readonly settings: E2bSettings | undefined
  /** E2B's own package, if it is installed. */
  readonly sdk: () => Promise<unknown>
  /** E2B ends a sandbox without commands after this time. */
  readonly idleMs: number
}

const PROBE_MS = 10_000

/** E2B's cloud, or a compatible service. Used only by name, because it sends files to another machine. */
export function e2b(parts: E2bParts): Backend {
  let account: Promise<E2bAccount> | undefined
  const accountOf = async (settings: E2bSettings): Promise<E2bAccount> => {
    assertPrivate(settings)
    account ??= parts
      .sdk()
      .then((sdk) => sdkAccount(sdk, settings) ?? restAccount(settings))
      .catch(() => restAccount(settings))
    return account
  }
  return {
    name: 'e2b',
    level: 'microvm',
    byNameOnly: true,
    emulated: false,
    runsImages: true,
    probe: () => probe(parts, accountOf),
    async open(plan: Plan, options: OpenOptions = {}): Promise<BackendSandbox> {
      if (!isPlan(plan)) throw new SandboxError('internal', 'a backend accepts only plans that policy made')
      const { settings } = parts
      if (!settings)
        throw new SandboxError('backend-unavailable', 'no E2B key is configured', { hint: NO_KEY })
      refuseUnsendable(plan, 'e2b')
      return openAt(await accountOf(settings), settings, plan, parts.idleMs, options)
    },
  }
}

/** SECURITY: a key in plain text can be read by everyone on the network. */
function assertPrivate({ apiUrl, sandboxUrl }: E2bSettings): void {
  for (const address of [apiUrl, sandboxUrl ?? apiUrl]) {
    const { protocol, hostname } = new URL(address)
    if (protocol === 'https:' || isLoopbackName(hostname)) continue
    throw new SandboxError('invalid-input', 'the E2B key may be sent to another machine only over https', {
      hint: 'use an https URL in E2B_API_URL and E2B_SANDBOX_URL',
    })
  }
}

const NO_KEY = 'export E2B_API_KEY=…'

async function probe(
  { settings }: E2bParts,
  accountOf: (settings: E2bSettings) => Promise<E2bAccount>,
): Promise<Probe> {
  if (!settings) return { available: false, reason: 'E2B_API_KEY is not set', fix: NO_KEY }
  const began = performance.now()
  try {
    await (await accountOf(settings)).check(AbortSignal.timeout(PROBE_MS))
    return { available: true, guarantees: REMOTE_CLAIMS, startMs: performance.now() - began }
  } catch (error) {
    const { message, hint } = error as SandboxError
    return { available: false, reason: message, fix: hint ?? 'check E2B_API_URL and the network' }
  }
}

async function openAt(
  account: E2bAccount,
  settings: E2bSettings,
  plan: Plan,
  idleMs: number,
  { signal }: OpenOptions,
): Promise<BackendSandbox> {
  const handle = await account.create(
    {
      template: plan.image ?? settings.template,
      timeoutMs: idleMs,
      internet: plan.network.mode === 'full',
      metadata: { ringfence: plan.agentId ?? 'sandbox' },
    },
    signal,
  )
  const transport = new E2bTransport(account, settings, handle, idleMs)
  try {
    await sendMounts(plan, transport.files)
    return new RemoteSandbox(plan, transport)
  } catch (error) {
    await transport.close()
    throw error
  }
}

/** One remote sandbox; it is kept alive while commands run in it, and E2B ends it when it is idle. */
class E2bTransport implements RemoteTransport {
  readonly files: GuestFiles
  readonly layers: readonly string[]
  readonly ended: Promise<string>
  readonly #account: E2bAccount
  readonly #settings: E2bSettings
  readonly #handle: E2bHandle
  readonly #idleMs: number
  #running = 0
  #beat: NodeJS.Timeout | undefined
  #closing: Promise<void> | undefined
  #isEnded: (why: string) => void = () => {}

  constructor(account: E2bAccount, settings: E2bSettings, handle: E2bHandle, idleMs: number) {
    this.#account = account
    this.#settings = settings
    this.#handle = handle
    this.#idleMs = idleMs
    this.layers = [`e2b:${account.spokenBy}`, `sandbox:${handle.id}`]
    this.ended = new Promise((resolve) => {
      this.#isEnded = resolve
    })
    const start = (request: RemoteRequest) => this.start(request)
    this.files = envdFiles(envdOf(settings, handle), (argv, input) => streamOf(start, argv, input))
  }

  readonly start = (request: RemoteRequest): RemoteProcess => {
    const line = new EnvdLine(envdOf(this.#settings, this.#handle), request)
    const process = new RemoteProcess(line, request.held)
    this.#count(1)
    void process.ended.then(({ lost }) => {
      this.#count(-1)
      if (lost?.startsWith('the sandbox is gone')) this.#isEnded(lost)
    })
    return process
  }

  readonly connect = (port: number): Promise<never> =>
    Promise.reject(
      new SandboxError('unsupported', `e2b does not support plain TCP connections to port ${port}`, {
        hint: `open https://${port}-${this.#handle.id}.${this.#handle.domain ?? this.#settings.domain}`,
      }),
    )

  #count(by: number): void {
    this.#running += by
    if (this.#running > 0 && !this.#beat) {
      this.#extend()
      this.#beat = setInterval(() => this.#extend(), this.#idleMs / 3).unref()
    } else if (this.#running === 0) {
      clearInterval(this.#beat)
      this.#beat = undefined
      this.#extend()
    }
  }

  #extend(): void {
    if (this.#closing) return
    this.#account.extend(this.#handle.id, this.#idleMs).catch((error: unknown) => {
      if (isGone(error)) this.#isEnded('ended by e2b')
    })
  }

  readonly close = (): Promise<void> => {
    this.#closing ??= this.#end()
    return this.#closing
  }

  async #end(): Promise<void> {
    clearInterval(this.#beat)
    await this.#account.kill(this.#handle.id)
    this.#isEnded('closed')
  }
}
