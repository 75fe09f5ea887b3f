import type { StoreTrailReader } from '../audit/store-read.ts'
import type { Decision } from '../model/decision.ts'
import type { Requester } from '../model/requester.ts'
import type { Keys } from '../supervisor/access/keys.ts'
import type { Sessions } from '../supervisor/access/sessions.ts'
import type { Approvals } from '../supervisor/approvals/approvals.ts'
import type { OperatorRules } from '../supervisor/approvals/auto-answer.ts'
import type { Reviews } from '../supervisor/snapshots/reviews.ts'
import type { Snapshots } from '../supervisor/snapshots/snapshots.ts'
import type { Supervisor } from '../supervisor/supervisor.ts'
import type { Feed } from '../supervisor/telemetry/feed.ts'
import type { Metrics } from '../supervisor/telemetry/metrics.ts'
import type { Samples } from '../supervisor/telemetry/samples.ts'
import type { Webhooks } from '../supervisor/telemetry/webhooks.ts'
import type { AuthenticatedStreams } from './authenticated-streams.ts'

/** Everything that the server speaks for; `compose/compose.ts` brings it together. */
export type ServerParts = {
  readonly supervisor: Supervisor
  readonly snapshots: Snapshots
  readonly reviews: Reviews
  readonly keys: Keys
  readonly sessions: Sessions
  readonly streams: AuthenticatedStreams
  readonly samples: Samples
  /** How often one address may try to sign in. */
  readonly signIns: { assert(name: string): void }
  readonly approvals: Approvals
  readonly webhooks: Webhooks
  readonly trail: StoreTrailReader
  readonly feed: Feed
  readonly metrics: Metrics
  readonly settings: ServerSettings
  /** What this host can do, as `doctor` says it. */
  readonly backends: () => Promise<readonly unknown[]>
  /** The same, measured now, with what is to be known about the host. */
  readonly doctor: () => Promise<unknown>
  readonly policy: PolicyParts
  readonly evaluate: (
    command: { readonly line: string } | { readonly argv: readonly [string, ...string[]] },
    place: { readonly workspace?: string; readonly cwd?: string },
  ) => Promise<Decision>
  /** Reads the configuration anew, as a whole or not at all. */
  readonly reload: () => Promise<{ readonly policy: string }>
  /** Why work cannot be done right now; empty when it can. */
  readonly trouble: () => Promise<readonly string[]>
  readonly log: (line: string) => void
  readonly skills: SkillParts
}

/** The operator's policy as a file that people read, try and change. */
type PolicyParts = {
  readonly hash: () => string
  /** What it comes to; what it says of the host around is for the operator. */
  readonly describe: (forOperator: boolean) => Promise<unknown>
  readonly source: () => PolicySource
  /** Reads a text as if it were the file; throws what is wrong with it. Changes nothing. */
  readonly check: (text: string) => Promise<CheckedPolicy>
  /** Puts the text in force, as a whole or not at all. `base` names the text that it replaces. */
  readonly save: (text: string, base: string) => Promise<{ readonly policy: string }>
  readonly inspect: (
    command: { readonly line: string } | { readonly argv: readonly [string, ...string[]] },
    place: { readonly workspace?: string | undefined; readonly cwd?: string | undefined },
  ) => Promise<unknown>
  readonly tryPath: (path: string, op: string, workspace: string | undefined) => Promise<unknown>
  readonly tryUrl: (url: string) => Promise<unknown>
  /** What the records of a while suggest, for a person to take or leave. */
  readonly suggest: (records: readonly Readonly<Record<string, unknown>>[]) => Promise<readonly unknown[]>
}

type PolicySource = {
  readonly file: string
  readonly exists: boolean
  readonly text: string
  /** Of the text. */
  readonly base: string
}

type CheckedPolicy = {
  readonly rules: number
  readonly examples: readonly unknown[]
  readonly description: unknown
}

/** Skills by name, each caller's apart; made by the composition root. */
export type SkillParts = {
  readonly usage: (tenant: string | undefined) => Promise<readonly unknown[]>
  /** The inspected ones, with what they ask for. */
  readonly list: () => Promise<readonly unknown[]>
  readonly run: (name: string, input: unknown, requester: Requester) => Promise<unknown>
}

type ServerSettings = {
  /** Names by which this server may be called, beside its addresses and `localhost`. */
  readonly hosts: readonly string[]
  /** Other web pages that may call it. */
  readonly origins: readonly string[]
  readonly requestsPerSecond: number
  /** How many wrong keys an address may try in a second. */
  readonly wrongKeysPerSecond: number
  readonly allowInteractive: () => boolean
  readonly operatorRules: () => OperatorRules
  /** Whether we speak TLS ourselves. */
  readonly tls: boolean
  readonly version: string
}
