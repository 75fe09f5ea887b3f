import type { Outcome } from '../model/command.ts'
import type { Action, CommandJudgement, Decision } from '../model/decision.ts'
import type { Level } from '../model/guarantee.ts'
import type { Limits, NetworkMode } from '../model/spec.ts'
import type { StreamEnd } from '../model/stream-end.ts'
import type { Approval, SandboxInfo, TrailRecord, WaitingReview } from './types.ts'

/** What the console is told beside the rest. */

export type Who = {
  readonly key_id: string
  readonly tenant: string
  readonly scopes: readonly string[]
  readonly operator: boolean
  readonly version: string
  readonly allow_interactive: boolean
}

/** Processor use in percent of one processor, and bytes of memory. */
export type Sample = readonly [cpu: number, memory: number]

export type ConsoleSandbox = SandboxInfo & {
  readonly tenant?: string
  readonly running?: number
  readonly last_command?: string | null
  readonly last_command_at?: string | null
  readonly egress?: { readonly allowed: number; readonly refused: number }
  readonly samples?: readonly Sample[]
}

export type ConsoleEvent =
  | {
      readonly type: 'hello'
      readonly data: {
        readonly sandboxes: readonly ConsoleSandbox[]
        readonly seq: number
        readonly policy: string
      }
    }
  | { readonly type: 'approvals'; readonly data: readonly Approval[] }
  | { readonly type: 'reviews'; readonly data: readonly WaitingReview[] }
  | { readonly type: 'sandbox' | 'gone'; readonly data: ConsoleSandbox }
  | { readonly type: 'samples'; readonly data: Readonly<Record<string, Sample>> }
  | { readonly type: 'record'; readonly data: TrailRecord }
  /** The last one, when the server ends the stream. */
  | { readonly type: 'cut'; readonly data: StreamEnd }

export type ExecView = {
  readonly exec_id: string
  readonly command: string
  readonly terminal: boolean
  readonly held: boolean
  readonly state: string
  readonly started_at: string
  readonly outcome: Outcome | null
  readonly duration_ms: number | null
  readonly violations: number
  readonly action: string
  readonly reason: string
}

export type Wall = {
  readonly id: string
  readonly open: boolean
  readonly layers: readonly string[]
  readonly backend?: string
  readonly level?: Level
  readonly preset?: string
  readonly image?: string | null
  readonly cwd?: string
  readonly run_as?: { readonly uid: number; readonly gid: number } | null
  readonly mounts?: readonly WallMount[]
  readonly masks?: readonly string[]
  readonly network?: { readonly mode: NetworkMode; readonly allow_hosts: readonly string[] }
  readonly unix_sockets?: readonly string[]
  readonly files?: readonly string[]
  readonly env?: readonly string[]
  readonly limits?: Limits
  readonly nets?: readonly string[]
  readonly needs?: readonly string[]
  readonly waived?: readonly string[]
  readonly protection?: readonly string[]
  readonly secrets?: readonly { readonly name: string; readonly host: string }[]
}

export type WallMount = {
  readonly source: string | null
  readonly target: string
  readonly mode: 'ro' | 'rw'
  readonly kind: string
  readonly own: boolean
  readonly review: boolean
}

export type EgressView = {
  readonly host: string
  readonly port: number
  readonly address: string | null
  readonly protocol: string
  readonly verdict: 'allow' | 'deny'
  readonly reason: string
  readonly bytes_in: number
  readonly bytes_out: number
  readonly duration_ms: number
  readonly at: string | null
}

export type JudgedCommand = CommandJudgement & {
  readonly depth: number
  readonly hard: boolean
  readonly rules: readonly string[]
  readonly matched: readonly string[]
}

export type Inspected = { readonly decision: Decision; readonly nodes: readonly JudgedCommand[] }
export type Verdict = {
  readonly verdict: 'allow' | 'deny' | 'block'
  readonly reason: string
  readonly addresses?: readonly string[]
}

export type PolicyDescription = {
  readonly default_action: Action
  readonly allowed_host_prefixes: readonly string[] | null
  readonly blocked_host_patterns: readonly string[]
  readonly limits: Readonly<Record<string, number | null>>
  readonly network: {
    readonly modes: readonly string[]
    readonly allow_hosts: readonly string[] | null
    readonly allow_private: readonly string[]
  }
  readonly allow_interactive: boolean
  readonly programs: readonly string[] | null
  readonly always_sandbox: readonly string[]
  readonly never_sandbox: readonly string[]
  readonly rules: readonly {
    readonly id: string
    readonly action: Action
    readonly matches: string
    readonly why: string
    readonly dirs: readonly string[]
    readonly examples: number
  }[]
  readonly built_in: readonly {
    readonly theme: string
    readonly rules: number
    readonly hard: number
    readonly actions: Readonly<Partial<Record<Action, number>>>
    readonly what: readonly string[]
  }[]
}

export type PolicyView = {
  readonly policy: string
  readonly description: PolicyDescription
  /** The operator's: the file and its text. */
  readonly file?: string
  readonly exists?: boolean
  readonly text?: string
  readonly base?: string
}

export type PolicyCheck =
  | {
      readonly ok: true
      readonly rules: number
      readonly examples: readonly {
        readonly rule: string
        readonly list: string
        readonly line: string
        readonly holds: boolean
      }[]
      readonly description: PolicyDescription
    }
  | { readonly ok: false; readonly problem: string; readonly hint?: string }

export type Suggestion = {
  readonly kind: 'rule' | 'host'
  readonly title: string
  readonly why: string
  readonly toml: string
  readonly seqs: readonly number[]
}

export type TrailHead = {
  readonly count: number
  readonly hash: string
  readonly key: string
  readonly offset: number
  readonly root: string
  readonly segment: number
  readonly seq: number
  readonly signature: string
  readonly time: string
}

export type TrailProof = {
  readonly record: TrailRecord
  readonly path: readonly string[]
  readonly head: TrailHead
  readonly public_key: string
}

export type BackendView = {
  readonly name: string
  readonly available: boolean
  readonly level: string
  readonly emulated: boolean
  readonly by_name_only: boolean
  readonly guarantees: readonly string[]
  readonly start_ms: number | null
  readonly reason: string | null
  readonly fix: string | null
}

export type Doctor = {
  readonly backends: readonly BackendView[]
  readonly node: string
  readonly kernel: string
  readonly notes: readonly {
    readonly id: string
    readonly weight: 'stops' | 'weakens' | 'tells'
    readonly text: string
    readonly fix?: string
  }[]
}

export type SkillView = {
  readonly name: string
  readonly dir: string
  readonly hash: string
  readonly version?: string
  readonly runtime?: string
  readonly state: 'unchanged' | 'changed' | 'missing'
  readonly inspection?: {
    readonly description?: string
    readonly files: number
    readonly bytes: number
    readonly asks: Readonly<Record<string, readonly string[]>>
    readonly env: readonly string[]
    readonly redFlags: readonly Finding[]
    readonly imports: readonly string[]
    readonly undeclared: readonly string[]
    readonly findings: readonly Finding[]
  }
}
export type Finding = { readonly severity: string; readonly what: string }

export type SkillUsage = {
  readonly skill: string
  readonly runs: number
  readonly fuel: number
  readonly duration_ms: number
  readonly violations: number
}
