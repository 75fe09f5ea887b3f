import type { Json } from '../../model/event.ts'
import type { Capability } from '../../policy/grants/capability.ts'
import type { NetworkPolicy } from '../../policy/network/network.ts'

/** Types of violations that a skill can cause. */
export type ViolationType =
  | 'CapabilityDenied'
  | 'PathTraversal'
  | 'SsrfBlocked'
  | 'ResourceExhausted'
  | 'Timeout'
/** One action that was blocked during a run. */
export type SkillViolation = { readonly violationType: ViolationType; readonly details: string }

/** The reply to one request, as the guest reads it. */
export type HostReply = { readonly ok: Json } | { readonly error: string; readonly code: string }

/** The host functions of a run. Each checks the capability, then the path or address, then acts. */
export interface HostFunctions {
  call(method: string, params: Params, signal: AbortSignal): Promise<HostReply>
  /** File functions for WASI programs; a guest cannot call them by name. */
  files(method: string, params: Params): HostReply
  /** Closes the run's open files. */
  close(): void
}
/** Parameters as the guest wrote them. */
export type Params = Readonly<Record<string, unknown>>

/** A request that passed the capability check and the checks of its text. */
export type FetchRequest = {
  readonly url: string
  readonly method: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: string | Uint8Array | undefined
}
/** A response, truncated to the size limit by the fetcher. */
type FetchReply = {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  readonly body: string | Uint8Array
}

/** Fetches a URL. The fetcher resolves the host name and checks the address itself. */
export type Fetcher = (request: FetchRequest, signal: AbortSignal) => Promise<FetchReply>

/** One agent's memory. The store enforces quotas across keys. */
export interface MemoryStore {
  recall(key: string): Promise<Json | undefined>
  store(key: string, value: Json): Promise<void>
}

/** A tool of the caller. It is called only when `ToolInvoke` is granted for its name. */
type Tool = (method: string, params: Params, signal: AbortSignal) => Promise<Json>

/** The configuration of one run of one skill. */
export type HostParts = {
  readonly grants: readonly Capability[]
  /** Relative paths start in this directory, and no path may leave it. */
  readonly workspace?: string | undefined
  readonly fetcher?: Fetcher | undefined
  /** Addresses that the operator permits; every public address when absent. */
  readonly network?: NetworkPolicy | undefined
  readonly memory?: MemoryStore | undefined
  /** Declared variables; never the host's own environment. */
  readonly env?: Readonly<Record<string, string>> | undefined
  readonly tool?: Tool | undefined
  readonly now?: () => number
  readonly onViolation: (violation: SkillViolation) => void
}

/** A refusal that is reported to the guest. */
export class HostRefusal extends Error {
  readonly code: string

  constructor(code: string, message: string) {
    super(message)
    this.code = code
  }
}

/** SECURITY: one message for paths that are not granted and paths that do not exist, so that neither can be probed. */
export const notHere = (name: string): HostRefusal =>
  new HostRefusal('capability-denied', `\`${name.slice(0, 200)}\` is missing or not granted`)

/** A text parameter; throws a refusal that names the parameter if it is missing. */
export function textParam(params: Params, name: string): string {
  const value = params[name]
  if (typeof value !== 'string') throw new HostRefusal('invalid-input', `missing parameter \`${name}\``)
  return value
}

/** Records the missing capability and returns the refusal. */
export function denied(parts: HostParts, what: string, name: string): HostRefusal {
  parts.onViolation({ violationType: 'CapabilityDenied', details: `${what} ${name.slice(0, 200)}` })
  return notHere(name)
}
