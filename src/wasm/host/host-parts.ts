import type { Json } from '../../model/event.ts'
import type { Capability } from '../../policy/grants/capability.ts'
import type { NetworkPolicy } from '../../policy/network/network.ts'

/** The seeds' names for what a skill was stopped from doing. */
export type ViolationType =
  | 'CapabilityDenied'
  | 'PathTraversal'
  | 'SsrfBlocked'
  | 'ResourceExhausted'
  | 'Timeout'
/** One thing that a run was stopped from doing. */
export type SkillViolation = { readonly violationType: ViolationType; readonly details: string }

/** The answer to one request, as the guest reads it. */
export type HostReply = { readonly ok: Json } | { readonly error: string; readonly code: string }

/** What a guest may ask of the host. Every function checks the capability, then the place, then acts. */
export interface HostFunctions {
  call(method: string, params: Params, signal: AbortSignal): Promise<HostReply>
  /** Files of a program for WASI; no guest can name these functions itself. */
  files(method: string, params: Params): HostReply
  /** Ends the run's open files. */
  close(): void
}
/** Parameters as the guest wrote them. */
export type Params = Readonly<Record<string, unknown>>

/** A request that has passed the capability and the checks of its text. */
export type FetchRequest = {
  readonly url: string
  readonly method: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: string | undefined
}
/** What came back, cut to a size by the fetcher. */
type FetchReply = {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
}

/** Fetches a URL on an address that it has checked itself; the names' answers are its business. */
export type Fetcher = (request: FetchRequest, signal: AbortSignal) => Promise<FetchReply>

/** One agent's memory. Quotas across keys are the store's. */
export interface MemoryStore {
  recall(key: string): Promise<Json | undefined>
  store(key: string, value: Json): Promise<void>
}

/** A tool of the caller's. It is asked only when `ToolInvoke` of its name is granted. */
type Tool = (method: string, params: Params, signal: AbortSignal) => Promise<Json>

/** What one run of one skill has been given. */
export type HostParts = {
  readonly grants: readonly Capability[]
  /** The directory that relative paths start from and that no path leaves. */
  readonly workspace?: string | undefined
  readonly fetcher?: Fetcher | undefined
  /** Which addresses the operator permits; every public one when absent. */
  readonly network?: NetworkPolicy | undefined
  readonly memory?: MemoryStore | undefined
  /** Declared variables; never the host's own environment. */
  readonly env?: Readonly<Record<string, string>> | undefined
  readonly tool?: Tool | undefined
  readonly now?: () => number
  readonly onViolation: (violation: SkillViolation) => void
}

/** A refusal on its way to the guest. */
export class HostRefusal extends Error {
  readonly code: string

  constructor(code: string, message: string) {
    super(message)
    this.code = code
  }
}

/** SECURITY: one sentence for what is not granted and what is not there, so that nothing can be probed. */
export const notHere = (name: string): HostRefusal =>
  new HostRefusal('capability-denied', `\`${name.slice(0, 200)}\` is missing or not granted`)

/** A text parameter, or the refusal that names it. */
export function textParam(params: Params, name: string): string {
  const value = params[name]
  if (typeof value !== 'string') throw new HostRefusal('invalid-input', `missing parameter \`${name}\``)
  return value
}

/** Records that a capability was missing and refuses. */
export function denied(parts: HostParts, what: string, name: string): HostRefusal {
  parts.onViolation({ violationType: 'CapabilityDenied', details: `${what} ${name.slice(0, 200)}` })
  return notHere(name)
}
