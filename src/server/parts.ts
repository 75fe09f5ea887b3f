import type { StoreTrailReader } from '../audit/store-read.ts'
import type { ClusterNode } from '../cluster/node.ts'
import type { NodeAdmin } from '../cluster/node-admin.ts'
import type { TrailRecord } from '../model/api/audit.ts'
import type { BackendView, Doctor } from '../model/api/host.ts'
import type { SettingList, TenantInfo } from '../model/api/operator.ts'
import type {
  CheckedPolicy,
  Inspected,
  PolicyDescription,
  PolicyHash,
  Suggestion,
  Verdict,
} from '../model/api/policy.ts'
import type { SkillRun, SkillUsage, SkillView } from '../model/api/skills.ts'
import type { Decision } from '../model/decision.ts'
import type { EventSink, Json } from '../model/event.ts'
import type { Requester } from '../model/requester.ts'
import type { Tracer } from '../model/tracer.ts'
import type { Keys, Principal } from '../supervisor/access/keys.ts'
import type { Sessions } from '../supervisor/access/sessions.ts'
import type { Approvals } from '../supervisor/approvals/approvals.ts'
import type { Images } from '../supervisor/images/images.ts'
import type { Reviews } from '../supervisor/snapshots/reviews.ts'
import type { Snapshots } from '../supervisor/snapshots/snapshots.ts'
import type { Templates } from '../supervisor/snapshots/templates.ts'
import type { Supervisor } from '../supervisor/supervisor.ts'
import type { Feed } from '../supervisor/telemetry/feed.ts'
import type { Journal } from '../supervisor/telemetry/journal.ts'
import type { Metrics } from '../supervisor/telemetry/metrics.ts'
import type { UsageHistory } from '../supervisor/telemetry/usage-history.ts'
import type { Webhooks } from '../supervisor/telemetry/webhooks.ts'
import type { VolumeFiles } from '../supervisor/volumes/volume-files.ts'
import type { Volumes } from '../supervisor/volumes/volumes.ts'
import type { BuildBody } from './e2b/shapes.ts'
import type { Build, Builds } from './e2b/templates/builds.ts'
import type { AuthenticatedStreams } from './streams/authenticated-streams.ts'

/** Everything that the routes use; `compose/serve-parts.ts` makes it. */
export type ServerParts = {
  readonly supervisor: Supervisor
  readonly snapshots: Snapshots
  readonly templates: Templates
  readonly volumes: Volumes
  readonly images: Images
  readonly builder: TemplateBuilder
  readonly volumeFiles: VolumeFiles
  readonly reviews: Reviews
  readonly keys: Keys
  readonly sessions: Sessions
  readonly streams: AuthenticatedStreams
  readonly usage: UsageHistory
  /** How often one address may try to sign in. */
  readonly signIns: { assert(name: string): void }
  /** How many requests and upgrades a key may send, by its id. */
  readonly requests: { assert(keyId: string): void }
  /** How many wrong keys an address may try, in requests and upgrades together. */
  readonly wrongKeys: { assert(address: string): void }
  readonly approvals: Approvals
  readonly webhooks: Webhooks
  readonly trail: StoreTrailReader
  readonly feed: Feed
  readonly metrics: Metrics
  readonly tracer: Tracer
  readonly journal?: Journal | undefined
  readonly settings: ServerSettings
  readonly tenants: () => Promise<readonly TenantInfo[]>
  /** The configuration file, setting by setting. */
  readonly configuration: () => SettingList
  /** The backends with what each can do on this host, by the last probe. */
  readonly backends: () => Promise<readonly BackendView[]>
  /** The report of `ringfence doctor`, probed now. */
  readonly doctor: () => Promise<Doctor>
  readonly policy: PolicyParts
  readonly evaluate: (
    command: { readonly line: string } | { readonly argv: readonly [string, ...string[]] },
    where: { readonly workspace?: string; readonly cwd?: string },
  ) => Promise<Decision>
  /** Reloads the configuration; an error changes nothing. */
  readonly reload: () => Promise<PolicyHash>
  /** Why the server is not ready; empty when it is. */
  readonly trouble: () => Promise<readonly string[]>
  readonly log: (line: string) => void
  /** This server as a node; absent: it is alone. */
  readonly cluster?: ClusterParts | undefined
  /** Where events are recorded. */
  readonly record: EventSink
  readonly skills: SkillParts
}

/** What the routes need of a cluster. */
export type ClusterParts = { readonly node: ClusterNode; readonly admin: NodeAdmin }

/** Builds templates; the same builds that E2B's routes start. */
type TemplateBuilder = {
  readonly builds: Builds
  /** Starts a build that was added; it ends by itself. */
  readonly start: (principal: Principal, build: Build, body: BuildBody) => void
}

/** The operator's policy: read it, try it, change its file. */
type PolicyParts = {
  readonly hash: () => string
  /** The effective policy; paths and private addresses of the host only for the operator. */
  readonly describe: (forOperator: boolean) => Promise<PolicyDescription>
  readonly source: () => PolicySource
  /** Checks a text as if it were the file; throws if it does not load. Changes nothing. */
  readonly check: (text: string) => Promise<CheckedPolicy>
  /** Replaces the file and reloads it; an error changes nothing. `base` identifies the text that it replaces. */
  readonly save: (text: string, base: string) => Promise<PolicyHash>
  readonly inspect: (
    command: { readonly line: string } | { readonly argv: readonly [string, ...string[]] },
    where: { readonly workspace?: string | undefined; readonly cwd?: string | undefined },
  ) => Promise<Inspected>
  readonly tryPath: (path: string, op: string, workspace: string | undefined) => Promise<Verdict>
  readonly tryUrl: (url: string) => Promise<Verdict>
  /** Changes to the policy that these records suggest. */
  readonly suggest: (records: readonly TrailRecord[]) => Promise<readonly Suggestion[]>
}

type PolicySource = {
  readonly file: string
  readonly exists: boolean
  readonly text: string
  /** Identifies the text. */
  readonly base: string
}

/** Skills, by name; `compose/compose.ts` makes it. */
export type SkillParts = {
  readonly usage: (tenant: string | undefined) => Promise<readonly SkillUsage[]>
  /** The inspected skills, with the capabilities that they request. */
  readonly list: () => Promise<readonly SkillView[]>
  readonly run: (name: string, input: Json | undefined, requester: Requester) => Promise<SkillRun>
}

type ServerSettings = {
  /** Names by which this server may be called, beside its addresses and `localhost`. */
  readonly hosts: readonly string[]
  /** Other web pages that may call it. */
  readonly origins: readonly string[]
  readonly allowInteractive: () => boolean
  /** Whether we speak TLS ourselves. */
  readonly tls: boolean
  readonly version: string
}
