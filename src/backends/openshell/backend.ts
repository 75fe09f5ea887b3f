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

export type OpenShellSettings = {
  /** `remote` asks a gateway; `mirror` runs behind this host's own wall, with the workspace where it is. */
  readonly mode: string | undefined
  /** The gateway's address. */
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

/** NVIDIA OpenShell: a gateway elsewhere, or its way of working on this host. */
export function openshell(settings: OpenShellSettings, registry: SandboxRegistry): Backend {
  if (settings.mode === 'mirror') return mirror(registry)
  return {
    ...FACE,
    probe: () => probe(settings),
    async open(plan: Plan, _options: OpenOptions = {}): Promise<BackendSandbox> {
      if (!isPlan(plan)) throw new SandboxError('internal', 'a backend accepts only plans that policy made')
      refuseUnsendable(plan, 'openshell')
      if (plan.network.mode === 'full')
        throw new SandboxError('unsupported', 'a sandbox of a gateway has no open network here', {
          hint: 'use network mode offline',
        })
      return openAt(gatewayOf(settings), plan, settings)
    },
  }
}

/** SECURITY: the wall is this host's own and as strong as always; only the name is OpenShell's. */
function mirror(registry: SandboxRegistry): Backend {
  const wall = (): Backend => {
    const local = registry.get('bubblewrap') ?? registry.get('seatbelt')
    if (!local) throw new SandboxError('backend-unavailable', 'there is no wall here to mirror behind')
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
    throw new SandboxError('backend-unavailable', 'no gateway of OpenShell is named', { hint: NAME_IT })
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
    const place = new GatewayTransport(gateway, sandbox, version)
    try {
      await sendMounts(plan, place.files)
      return new RemoteSandbox(plan, place)
    } catch (error) {
      await place.close()
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
    Promise.reject(
      new SandboxError('unsupported', `port ${port} of a gateway's sandbox is not reached from here`),
    )

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
