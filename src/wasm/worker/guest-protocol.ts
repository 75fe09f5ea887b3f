import type { WasmModule } from '../engine.ts'

/** What travels between the host and the thread that a guest runs on. */

/** How a guest is entered. */
export type GuestEntry =
  | { readonly kind: 'execute' }
  | { readonly kind: 'command' }
  /** An exported function of an Extism plug-in. */
  | { readonly kind: 'plugin'; readonly name: string }
  | { readonly kind: 'run'; readonly args: readonly (number | bigint)[] }

/** What a guest may say. */
type GuestLimits = {
  /** Bytes of one result, and of one host call's request or reply. */
  readonly messageBytes: number
  readonly logBytes: number
  readonly logLines: number
}

/** One run: a fresh instance of a metered module. */
export type GuestJob = {
  readonly module: WasmModule
  readonly entry: GuestEntry
  /** The import names that the module asks for, already checked. */
  readonly imports: readonly { readonly module: string; readonly name: string }[]
  readonly exports: { readonly meter: string; readonly work: string; readonly start: string }
  readonly initialize: boolean
  readonly input: string
  readonly args: readonly string[]
  /** `NAME=value` each. */
  readonly env: readonly string[]
  /** Directories that a program finds open, and where the host begins with their names. */
  readonly preopens: readonly { readonly name: string; readonly base: string }[]
  /** What is real instead of the same in every run. */
  readonly real: { readonly clock: boolean; readonly random: boolean }
  readonly fuel: number
  readonly frames: number
  readonly limits: GuestLimits
  readonly wallMs: number
}

/** One line of a guest, without control characters. */
export type LogLine = { readonly level: string; readonly text: string }

/** How a run ended, as far as the thread can tell. */
export type GuestEnd =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'values'; readonly values: readonly (number | bigint)[] }
  | { readonly kind: 'exhausted'; readonly what: 'fuel' | 'stack' | 'memory' }
  | { readonly kind: 'timeout' }
  | { readonly kind: 'trap'; readonly message: string }
  | { readonly kind: 'abi'; readonly message: string }
  | { readonly kind: 'exit'; readonly code: number; readonly text: string; readonly said?: string }
  /** A host function refused something, and its interface has no other way to say so. */
  | { readonly kind: 'refused'; readonly code: string; readonly message: string }

/** What the thread knows at the end of a run. */
export type GuestReport = {
  readonly end: GuestEnd
  readonly fuel: number
  readonly log: readonly LogLine[]
  readonly logDropped: number
}

/** From the thread: a question, to be answered on the reply port, or the end of the run. */
export type GuestMessage =
  | { readonly kind: 'ask'; readonly method: string | undefined; readonly text: string }
  | { readonly kind: 'report'; readonly report: GuestReport }
