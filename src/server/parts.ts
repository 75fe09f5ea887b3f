import type { StoreTrailReader } from '../audit/store-read.ts'
import type { Decision } from '../model/decision.ts'
import type { Feed } from '../supervisor/feed.ts'
import type { Keys } from '../supervisor/keys.ts'
import type { Metrics } from '../supervisor/metrics.ts'
import type { Questions } from '../supervisor/questions.ts'
import type { Snapshots } from '../supervisor/snapshots.ts'
import type { Supervisor } from '../supervisor/supervisor.ts'
import type { Webhooks } from '../supervisor/webhooks.ts'

/** Everything that the server speaks for; `compose.ts` brings it together. */
export type ServerParts = {
  readonly supervisor: Supervisor
  readonly snapshots: Snapshots
  readonly keys: Keys
  readonly questions: Questions
  readonly webhooks: Webhooks
  readonly trail: StoreTrailReader
  readonly feed: Feed
  readonly metrics: Metrics
  readonly settings: ServerSettings
  /** What this host can do, as `doctor` says it. */
  readonly backends: () => Promise<readonly unknown[]>
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

/** Skills by name, each caller's apart; made by the composition root. */
export type SkillParts = {
  readonly usage: (tenant: string | undefined) => Promise<readonly unknown[]>
  readonly run: (name: string, input: unknown, tenant: string) => Promise<unknown>
}

export type ServerSettings = {
  /** Names by which this server may be called, beside its addresses and `localhost`. */
  readonly hosts: readonly string[]
  /** Other web pages that may call it. */
  readonly origins: readonly string[]
  readonly requestsPerSecond: number
  /** How many wrong keys an address may try in a second. */
  readonly wrongKeysPerSecond: number
  readonly allowInteractive: () => boolean
}
