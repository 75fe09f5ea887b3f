import type { EventSink } from '../model/event.ts'
import type { Requester } from '../model/requester.ts'
import type { Spec } from '../model/spec.ts'
import type { Tracer } from '../model/tracer.ts'
import type { Store } from '../store/sql.ts'
import type { Approvals } from './approvals/approvals.ts'
import type { Made } from './gate.ts'
import type { Instance } from './instance.ts'
import type { LiveSandbox } from './lifecycle/live-sandbox.ts'
import type { SuspendedFiles } from './lifecycle/sleep.ts'
import type { OpenSandbox } from './open-sandbox.ts'
import type { PoolSize } from './sandbox-pool.ts'
import type { Metrics } from './telemetry/metrics.ts'

type SupervisorLimits = {
  readonly sandboxes: number
  readonly sandboxesPerKey: number
  /** For all keys of a tenant together; the operator's keys are not limited. */
  readonly sandboxesPerTenant: (tenant: string) => number
  readonly opening: number
  readonly waiting: number
  readonly execs: number
  /** Commands in the background and in terminals. */
  readonly background: number
  /** The memory limit for command output of all sandboxes together. */
  readonly outputBytes: number
  readonly defaultTtlMs: number
}

/** What the supervisor is made of. */
export type SupervisorParts = {
  readonly store: Store
  readonly trail: EventSink
  readonly instance: Instance
  readonly newId: (prefix: string) => string
  readonly open: (
    spec: Spec,
    options: {
      readonly id?: string
      readonly signal?: AbortSignal
      readonly owner?: string
      readonly requester: Requester
      /** The sandbox was suspended, so its files exist. */
      readonly isSuspended?: boolean
      /** Grows each time another server takes the sandbox over. */
      readonly generation?: number
      /** Goes on with what another server left. */
      readonly takesOver?: boolean
    },
  ) => Promise<OpenSandbox>
  /** The files of suspended sandboxes; absent: sandboxes are only paused with their memory. */
  readonly suspended?: SuspendedFiles
  /** How long a paused sandbox without memory is kept. */
  readonly keepPausedMs?: () => number
  /** Derives a sandbox's own token from its id. Absent: the token is random and shown once. */
  readonly tokenOf?: (id: string) => string
  /** Throws if there is no disk space for the records of more work. */
  readonly assertFreeSpace: () => void
  /** Throws if the policy rejects a spec. */
  readonly judge: (spec: Spec, requester: Requester) => void
  /** Throws if a spec, or its plan, contains more of the host than the requester may have. */
  readonly assertPermitted: (requester: Requester, spec: Spec, made?: Made) => void
  readonly approvals: Approvals
  readonly metrics: Metrics
  /** Absent: nothing is traced. */
  readonly tracer?: Tracer | undefined
  readonly limits: SupervisorLimits
  readonly pool?: readonly PoolSize[]
  /** How many prepared sandboxes of each kind are kept ready. */
  readonly prepared?: number
  readonly policyHash: () => string
  /** Called with each sandbox when it becomes known: a new one, or one from before a restart. */
  readonly onLive?: (entry: LiveSandbox) => void
  /** Several servers on one database; absent: this one is alone. */
  readonly fleet?: Fleet
}

/** What the supervisor asks of the cluster that it belongs to. */
export type Fleet = {
  /** Throws unless this server holds its lease, so that no other one can have taken over. */
  assertHeld(): void
  /** Reserves room for a sandbox on this server; throws if there is none. Call the result when it is gone. */
  reserve(spec: Spec): () => void
  /** A create has ended; `error` is why it failed. */
  created(error?: unknown): void
  /** How long a sandbox may go on without hearing from this server; 0: no longer, so that it is not told anything. */
  leaseMs(spec: Pick<Spec, 'restart'>): number
}
