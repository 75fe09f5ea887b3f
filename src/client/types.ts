import type { Outcome, Violation } from '../model/command.ts'
import type { Decision } from '../model/decision.ts'
import type { ErrorCode } from '../model/errors.ts'
import type { Level } from '../model/guarantee.ts'
import type { Limits, NetworkMode, Preset } from '../model/spec.ts'
import type { StreamEnd } from '../model/stream-end.ts'

/** The shapes that cross the wire. */

export type SandboxSpec = {
  readonly backend?: string
  readonly min_isolation?: Level
  readonly preset?: Preset
  readonly template?: string
  readonly image?: string
  readonly workspace?: string
  readonly read?: readonly string[]
  readonly write?: readonly string[]
  readonly deny?: readonly string[]
  readonly mounts?: readonly {
    readonly source: string
    readonly target: string
    readonly mode?: 'ro' | 'rw'
  }[]
  readonly network?: { readonly mode?: NetworkMode; readonly allow_hosts?: readonly string[] }
  readonly unix_sockets?: readonly string[]
  /** Brokered at the proxy: `NAME=SECRET@HOST`, of what the server's operator lends. */
  readonly secrets?: readonly string[]
  readonly limits?: Limits
  readonly env?: Readonly<Record<string, string>>
  readonly waive?: readonly string[]
  readonly metadata?: Readonly<Record<string, string>>
  /** What is written to the host's directories waits for a person's word. */
  readonly review?: boolean
  readonly timeout_ms?: number
  readonly idle_ms?: number
  readonly agent_id?: string
}

/** One thing that a reviewed sandbox changed, by the path that it has inside. */
export type Change = {
  readonly path: string
  readonly change: 'added' | 'changed' | 'deleted' | 'mode'
  readonly kind: 'file' | 'dir' | 'link' | 'other'
  readonly mode: number
  readonly size: number
  readonly binary: boolean
  /** Where a link leads. */
  readonly target?: string
  /** Names exactly this change; `apply` takes it, so that what was looked at is what becomes real. */
  readonly version: string
}

export type Changes = {
  /** Whether the sandbox still runs, so that there may be more. */
  readonly open: boolean
  readonly items: readonly Change[]
  /** So many there are; `items` holds the first. */
  readonly total: number
  readonly next: null
}

/** A text before and after; null where it is no text, or too long to read. */
export type ChangeDiff = Change & { readonly before: string | null; readonly after: string | null }

/** A sandbox that has ended and whose changes wait; null where nobody could count them. */
export type WaitingReview = SandboxInfo & { readonly changes: number | null }

export type Applied = {
  readonly applied: number
  readonly refused: readonly { readonly path: string; readonly why: string }[]
  /** What is left. */
  readonly waiting: number
}

export type SandboxState =
  | 'requested'
  | 'provisioning'
  | 'ready'
  | 'executing'
  | 'paused'
  | 'destroying'
  | 'destroyed'
  | 'failed'

/** What a sandbox held at one moment; its id is a `template` for others. */
export type SnapshotInfo = {
  readonly id: string
  readonly name: string | null
  readonly sandbox_id: string | null
  readonly backend: string
  readonly created_at: string
}

export type SandboxInfo = {
  readonly id: string
  readonly state: SandboxState
  readonly reason: string | null
  readonly backend: string | null
  readonly level: Level | null
  /** The fences in place, as the kernel reports them. */
  readonly layers: readonly string[]
  readonly created_at: string
  readonly expires_at: string | null
  readonly ended_at: string | null
  readonly limits: Limits
  readonly network: { readonly mode: NetworkMode; readonly allow_hosts: readonly string[] }
  /** Whether what it writes waits for a person. */
  readonly review?: boolean
  readonly metadata: Readonly<Record<string, string>>
  readonly agent_id: string | null
  /** Opens this sandbox alone; only in the answer to its create. */
  readonly token?: string
}

export type ExecOptions = {
  readonly cwd?: string
  readonly env?: Readonly<Record<string, string>>
  readonly stdin?: string
  readonly stdin_open?: boolean
  readonly timeout_ms?: number
  readonly background?: boolean
  readonly signal?: AbortSignal
}

export type ExecResult = {
  readonly sandbox_id: string
  readonly exec_id: string
  readonly state: 'running' | 'ended' | 'failed'
  readonly backend: string
  readonly level: Level
  readonly layers: readonly string[]
  /** Nothing while it runs. */
  readonly outcome: Outcome | null
  readonly stdout: string
  readonly stderr: string
  readonly truncated: boolean
  readonly duration_ms: number
  readonly violations: readonly Violation[]
  readonly decision: Decision | null
  /** Why it was stopped, when its sandbox ended around it. */
  readonly cut?: StreamEnd
}

export type { StreamEnd, StreamEndReason } from '../model/stream-end.ts'

export type ExecEvent =
  | { readonly type: 'start'; readonly exec_id: string; readonly pid: number }
  | { readonly type: 'stdout' | 'stderr'; readonly data: Uint8Array }
  /** A human is asked; nothing runs until the answer. */
  | { readonly type: 'approval'; readonly id: string }
  /** Output was lost because nobody read it in time. */
  | { readonly type: 'gap' }
  | { readonly type: 'end'; readonly result: Omit<ExecResult, 'stdout' | 'stderr'> }

export type FileInfo = {
  readonly name: string
  readonly path: string
  readonly kind: 'file' | 'dir' | 'link' | 'other'
  readonly size: number
  readonly mode: number
  readonly uid: number
  readonly gid: number
  readonly modified_at: string
  readonly target?: string
}

export type Page<T> = { readonly items: readonly T[]; readonly next: string | null }

/** What the policy says to one host of a sandbox's list. */
export type HostVerdict = {
  readonly host: string
  readonly verdict: 'allow' | 'deny'
  readonly reason: string
}

export type Approval = {
  readonly id: string
  readonly command: string
  readonly cwd: string
  readonly decision: Decision
  readonly sandbox_id: string
  /** The command that waits; the same in its other records. */
  readonly exec_id?: string | null
  readonly agent_id: string | null
  readonly asked_at: string
  readonly expires_at: string
  readonly state: 'pending' | 'approved' | 'rejected' | 'expired'
  readonly answered_by?: string | null
  readonly answered_at?: string | null
  readonly reason?: string | null
}

export type KeyInfo = {
  readonly id: string
  readonly name: string
  readonly start: string
  readonly scopes: readonly string[]
  readonly tenant: string
  readonly created_at: string
  readonly revoked_at: string | null
}

export type TrailRecord = {
  readonly seq: number
  readonly time: string
  readonly event: string
  readonly prev_hash: string
  readonly hash: string
  readonly [field: string]: unknown
}

/** A refusal as it comes over the wire. */
export type Problem = {
  readonly code: ErrorCode
  readonly message: string
  readonly hint?: string
  readonly reasons?: readonly string[]
  readonly request_id?: string
}
