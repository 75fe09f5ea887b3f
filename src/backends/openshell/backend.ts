import { readFileSync } from 'node:fs'
import { SandboxError } from '../../model/errors.ts'
import { isPlan, type Plan } from '../../model/plan.ts'
import type { Backend, BackendSandbox, GuestFiles, OpenOptions, Probe } from '../backend.ts'
import { guestFiles } from '../guest-files.ts'
import type { SandboxRegistry } from '../registry.ts'
import { refuseUnsendable, sendMounts } from '../remote/mounts.ts'
import { RemoteProcess } from '../remote/process.ts'
import { REMOTE_CLAIMS, type RemoteRequest, RemoteSandbox, type RemoteTransport } from '../remote/sandbox.ts'
import { scriptedFiles } from './files.ts'
import { Gateway, type GatewaySandbox } from './gateway.ts'

/** Where the gateway is, or that this host is used. */
export type OpenShellSettings = {
  /** `remote` uses a gateway; `mirror` runs on a backend of this host, with the workspace in place. */
  readonly mode: string | undefined
  /** The gateway's URL. */
  readonly apiUrl?: string | undefined
  /** A bearer token. */
  readonly apiKey?: string | undefined
  readonly caFile?: string | undefined
  readonly certFile?: string | undefined
  readonly keyFile?: string | undefined
  readonly image?: string | undefined
}

const PROBE_MS = 5000
const FACE = {
  name: 'openshell',
  level: 'container',
  byNameOnly: true,
  emulated: false,
  runsImages: true,
} as const

/** NVIDIA OpenShell: a remote gateway, or an emulation of it on this host. */
export function openshell(settings: OpenShellSettings, registry: SandboxRegistry): Backend {
  if (settings.mode === 'mirror') return mirror(registry)
  return {
    ...FACE,
    probe: () => probe(settings),
    async open(plan: Plan, _options: OpenOptions = {}): Promise<BackendSandbox> {
      if (!isPlan(plan)) throw new SandboxError('internal', 'a backend accepts only plans that policy made')
      refuseUnsendable(plan, 'openshell')
      if (plan.network.mode === 'full')
        throw new SandboxError('unsupported', 'a gateway’s sandbox does not support network access', {
          hint: 'use network mode offline',
        })
      return openAt(gatewayOf(settings), plan, settings)
    },
  }
}

/** SECURITY: the isolation is that of this host's backend, unchanged; only the name is OpenShell's. */
function mirror(registry: SandboxRegistry): Backend {
  const wall = (): Backend => {
    const local = registry.get('bubblewrap') ?? registry.get('seatbelt')
    if (!local)
      throw new SandboxError('backend-unavailable', 'no backend on this host is available for mirror mode')
    return local
  }
  return {
    ...FACE,
    level: 'os',
    runsImages: false,
    probe: async () => wall().probe(),
    open: async (plan, options) => wall().open(plan, options),
  }
}

function gatewayOf({ apiUrl, apiKey, caFile, certFile, keyFile }: OpenShellSettings): Gateway {
  if (apiUrl === undefined)
    throw new SandboxError('backend-unavailable', 'no OpenShell gateway is configured', { hint: NAME_IT })
  const read = (file: string | undefined): Buffer | undefined =>
    file === undefined ? undefined : readFileSync(file)
  return new Gateway({
    url: apiUrl,
    token: apiKey,
    ca: read(caFile),
    cert: read(certFile),
    key: read(keyFile),
  })
}

const NAME_IT = 'export RINGFENCE_OPENSHELL_URL=https://gateway:8080 RINGFENCE_OPENSHELL_TOKEN=…'

async function probe(settings: OpenShellSettings): Promise<Probe> {
  let gateway: Gateway | undefined
  const began = performance.now()
  try {
    gateway = gatewayOf(settings)
    await gateway.version(PROBE_MS)
    return { available: true, guarantees: REMOTE_CLAIMS, startMs: performance.now() - began }
  } catch (error) {
    const { message, hint } = error as SandboxError
    return { available: false, reason: message, fix: hint ?? NAME_IT }
  } finally {
    gateway?.close()
  }
}

async function openAt(gateway: Gateway, plan: Plan, { image }: OpenShellSettings): Promise<BackendSandbox> {
  try {
    const version = await gateway.version()
    const sandbox = await gateway.create(plan.image ?? image, { 'made-by': 'ringfence' })
    const transport = new GatewayTransport(gateway, sandbox, version)
    try {
      await sendMounts(plan, transport.files)
      return new RemoteSandbox(plan, transport)
    } catch (error) {
      await transport.close()
      throw error
    }
  } catch (error) {
    gateway.close()
    throw error
  }
}

class GatewayTransport implements RemoteTransport {
  readonly files: GuestFiles
  readonly layers: readonly string[]
  readonly ended: Promise<string>
  readonly #gateway: Gateway
  readonly #sandbox: GatewaySandbox
  #closing: Promise<void> | undefined
  #isEnded: (why: string) => void = () => {}

  constructor(gateway: Gateway, sandbox: GatewaySandbox, version: string) {
    this.#gateway = gateway
    this.#sandbox = sandbox
    this.layers = [`openshell:${version}`, `sandbox:${sandbox.name}`]
    this.ended = new Promise((resolve) => {
      this.#isEnded = resolve
    })
    this.files = guestFiles(scriptedFiles(this.start), () => true)
  }

  readonly start = (request: RemoteRequest): RemoteProcess =>
    new RemoteProcess(this.#gateway.line(this.#sandbox, request), request.held)

  readonly connect = (port: number): Promise<never> =>
    Promise.reject(new SandboxError('unsupported', `port ${port} of a gateway's sandbox cannot be reached`))

  readonly close = (): Promise<void> => {
    this.#closing ??= this.#end()
    return this.#closing
  }

  async #end(): Promise<void> {
    try {
      await this.#gateway.delete(this.#sandbox)
    } finally {
      this.#gateway.close()
      this.#isEnded('closed')
    }
  }
}
