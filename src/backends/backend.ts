import type { Command, ExecResult } from '../model/command.ts'
import type { Guarantee, Level } from '../model/guarantee.ts'
import type { Plan } from '../model/plan.ts'

/** What a backend can keep on this host right now: measured by running something, never assumed. */
export type Probe =
  | { readonly available: true; readonly guarantees: readonly Guarantee[]; readonly startMs: number }
  | { readonly available: false; readonly reason: string; readonly fix: string }

export type ExecIo = {
  readonly stdin?: 'inherit' | Uint8Array | undefined
  /** `inherit` passes our own standard streams through; a function gets each chunk; otherwise output is collected. */
  readonly output?: 'inherit' | ((stream: 'stdout' | 'stderr', chunk: Uint8Array) => void) | undefined
  readonly signal?: AbortSignal | undefined
  /** The command starts when this resolves, and never when it rejects; the place for it may be made ready meanwhile. */
  readonly permit?: Promise<unknown> | undefined
}

/** One way of isolating. Backends know plans; they know nothing of policy, HTTP or audit. */
export interface Backend {
  readonly name: string
  readonly level: Level
  /** Chosen only when it is asked for by name. */
  readonly byNameOnly: boolean
  readonly emulated: boolean
  probe(): Promise<Probe>
  /** What a probe's answer depends on; while it stays the same the answer may be remembered. */
  fingerprint?(): string
  /** Brings a sandbox up. On failure it throws and leaves nothing behind. */
  open(plan: Plan, signal?: AbortSignal): Promise<BackendSandbox>
}

export interface BackendSandbox {
  exec(command: Command, io?: ExecIo): Promise<ExecResult>
  read(path: string): Promise<Uint8Array>
  write(path: string, data: Uint8Array): Promise<void>
  /** Idempotent. When it resolves, nothing of the sandbox is left on the host. */
  close(): Promise<void>
}

/** For callers that drive a process of their own: the command that puts another one behind the wall. */
export type Wrapped = {
  readonly command: string
  readonly args: readonly string[]
  readonly env: Readonly<Record<string, string>>
  readonly cwd: string
  readonly dispose: () => Promise<void>
}

/** An optional power: backends that are one process can be driven by the caller. */
export interface Wrapper {
  wrap(plan: Plan, command: Command): Promise<Wrapped>
}

export const canWrap = (backend: Backend): backend is Backend & Wrapper => 'wrap' in backend
