import type { CreateBody } from '../model/api/create-sandbox.ts'
import type { ExecEnd } from '../model/api/execs.ts'
import type { newTemplateShape } from '../model/api/sandboxes.ts'
import type { Infer } from '../model/shape.ts'

/** What goes over the wire. The types of answers are those of the shapes in `model/api`, which the server's routes declare. */

export type { Approval } from '../model/api/approvals.ts'
export type { SignedHead, TrailHead, TrailProof, TrailRecord, Verification } from '../model/api/audit.ts'
export type { ExecEnd, ExecResult, ExecView } from '../model/api/execs.ts'
export type { Page } from '../model/api/fields.ts'
export type { FileChange, FileInfo } from '../model/api/files.ts'
export type { Backends, BackendView } from '../model/api/host.ts'
export type { CreatedKey, KeyInfo } from '../model/api/keys.ts'
export type { NodeInfo } from '../model/api/nodes.ts'
export type { HostTraffic, SettingInfo, SettingList, TenantInfo, Traffic } from '../model/api/operator.ts'
export type { PolicyHash, PolicyView } from '../model/api/policy.ts'
export type { Problem } from '../model/api/problem.ts'
export type {
  Applied,
  Change,
  ChangeDiff,
  Changes,
  ReviewPage,
  WaitingReview,
} from '../model/api/reviews.ts'
export type {
  HostVerdict,
  NetworkChange,
  SandboxInfo,
  SandboxMetrics,
  SandboxState,
  SnapshotInfo,
  TemplateBuild,
  TemplateInfo,
} from '../model/api/sandboxes.ts'
export type { VolumeInfo } from '../model/api/volumes.ts'
export type { CreatedWebhook, WebhookInfo } from '../model/api/webhooks.ts'
export type { StreamEnd, StreamEndReason } from '../model/stream-end.ts'

/** What a client asks for when it creates a sandbox. */
export type SandboxSpec = CreateBody

/** What a client asks for when it builds a template. */
export type TemplateSpec = Infer<typeof newTemplateShape>

/** How a command runs. */
export type ExecOptions = {
  readonly cwd?: string
  /** A user of a sandbox with a writable root; default: `user`. */
  readonly user?: string
  readonly env?: Readonly<Record<string, string>>
  /** Must be what the sandbox was created with; otherwise the command is refused. */
  readonly isolation?: 'sandbox' | 'command'
  /** Of an isolated command: the secrets of the sandbox that it may use, by name. Default: none. */
  readonly secrets?: readonly string[]
  /** Of an isolated command: whether it may use the sandbox's proxy. Default: yes. */
  readonly network?: boolean
  /** Of an isolated command: the ports at which it can be reached from outside. Default: none. */
  readonly ports?: readonly number[]
  readonly stdin?: string
  readonly stdin_open?: boolean
  /** Runs the command in a terminal of this size, if the server allows terminals. All output is `stdout`. */
  readonly terminal?: TerminalSize
  readonly timeout_ms?: number
  readonly background?: boolean
  readonly signal?: AbortSignal
}

/** The size of a terminal in characters. */
export type TerminalSize = { readonly cols: number; readonly rows: number }

/** One event of a running command. */
export type ExecEvent =
  | { readonly type: 'start'; readonly exec_id: string; readonly pid: number }
  | { readonly type: 'stdout' | 'stderr'; readonly data: Uint8Array }
  /** The command waits for a person. */
  | { readonly type: 'approval'; readonly id: string }
  /** Output was dropped because it was not read in time. */
  | { readonly type: 'gap' }
  | { readonly type: 'end'; readonly result: ExecEnd }
