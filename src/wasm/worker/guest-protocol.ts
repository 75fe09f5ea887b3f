import type { Definition } from '../component/definitions.ts'
import type { WasmModule } from '../engine.ts'

/** Messages between the host and the thread that runs a guest. */

/** The entry point of a guest. */
export type GuestEntry =
  | { readonly kind: 'execute' }
  | { readonly kind: 'command' }
  /** An exported function of an Extism plug-in. */
  | { readonly kind: 'plugin'; readonly name: string }
  | { readonly kind: 'run'; readonly args: readonly (number | bigint)[] }
  | ComponentEntry

/** A core module of a component, metered. */
export type ComponentModule = {
  readonly module: WasmModule
  /** What one start takes of the limits: pages of memory and table elements at most. */
  readonly pages: number
  readonly elements: number
  /** The length of its code and data. */
  readonly bytes: number
  /** Whether it can create garbage-collected objects. */
  readonly objects: boolean
}

/** A component: its definitions, its core modules and the exported function to call. */
export type ComponentEntry = {
  readonly kind: 'component'
  readonly definitions: readonly Definition[]
  readonly modules: readonly ComponentModule[]
  readonly limits: { readonly pages: number; readonly elements: number }
  /** `execute`: text in, text out; `command`: `wasi:cli/run`. */
  readonly call: { readonly kind: 'execute' | 'command'; readonly name: string }
}

/** Limits on the guest's messages and log. */
type GuestLimits = {
  /** Maximum bytes of one result, and of the request or reply of one host call. */
  readonly messageBytes: number
  readonly logBytes: number
  readonly logLines: number
}

/** One run: a new instance of a metered module, or of a component. */
export type GuestJob = {
  /** `undefined` for a component, whose core modules are in the entry. */
  readonly module: WasmModule | undefined
  readonly entry: GuestEntry
  /** The module's imports, already checked. */
  readonly imports: readonly { readonly module: string; readonly name: string }[]
  readonly exports: Readonly<Record<'meter' | 'work' | 'objects' | 'start', string>>
  readonly initialize: boolean
  readonly input: string
  readonly args: readonly string[]
  /** `NAME=value` each. */
  readonly env: readonly string[]
  /** Preopened directories: the name that the program sees, and the path that the host prefixes. */
  readonly preopens: readonly { readonly name: string; readonly base: string }[]
  /** Real sources instead of values that are the same in every run. */
  readonly real: { readonly clock: boolean; readonly random: boolean }
  readonly fuel: number
  readonly frames: number
  readonly limits: GuestLimits
  readonly wallMs: number
}

/** One log line of a guest, without control characters. */
export type LogLine = { readonly level: string; readonly text: string }

/** How a run ended, as seen by the thread. */
export type GuestEnd =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'values'; readonly values: readonly (number | bigint)[] }
  | { readonly kind: 'exhausted'; readonly what: 'fuel' | 'stack' | 'memory' }
  | { readonly kind: 'timeout' }
  | { readonly kind: 'trap'; readonly message: string }
  | { readonly kind: 'abi'; readonly message: string }
  | { readonly kind: 'exit'; readonly code: number; readonly text: string; readonly said?: string }
  /** A host function refused a request, and its interface cannot report the error in any other way. */
  | { readonly kind: 'refused'; readonly code: string; readonly message: string }

/** The thread's report at the end of a run. */
export type GuestReport = {
  readonly end: GuestEnd
  readonly fuel: number
  readonly log: readonly LogLine[]
  readonly logDropped: number
}

/** From the thread: a request, to be answered on the reply port, or the report at the end of the run. */
export type GuestMessage =
  | { readonly kind: 'ask'; readonly method: string | undefined; readonly text: string }
  | { readonly kind: 'report'; readonly report: GuestReport }
