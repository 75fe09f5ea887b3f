import { positionOf } from '../audit/chain.ts'
import type { Approval } from '../model/api/approvals.ts'
import type { WaitingReview } from '../model/api/reviews.ts'
import type { SandboxInfo, SandboxState } from '../model/api/sandboxes.ts'
import type { Decision } from '../model/decision.ts'
import type { Level } from '../model/guarantee.ts'
import type { Spec } from '../model/spec.ts'
import { timeText } from '../model/text/time-text.ts'
import { isOperator, type Principal } from '../supervisor/access/keys.ts'
import type { ApprovalRow, StoredHost } from '../supervisor/approvals/approvals.ts'
import { isEnded } from '../supervisor/lifecycle/lifecycle.ts'
import type { SandboxView } from '../supervisor/provisioner.ts'
import type { WaitingReview as Waiting } from '../supervisor/snapshots/reviews.ts'

/** Rows of the store as answers. Columns are cast, not parsed: only the supervisor writes them. */

const timeOf = (ms: number | null): string | null => (ms === null ? null : timeText(ms))

/** The metadata that the caller gave, without the server's own. */
export const callerMetadata = ({ metadata = {} }: Spec): Record<string, string> =>
  Object.fromEntries(Object.entries(metadata).filter(([name]) => !name.startsWith('ringfence.')))

/** The state that callers see. */
export const stateOf = ({ row, live }: SandboxView): SandboxState =>
  live?.shown ?? (row.state as SandboxState)

/** The isolation layers that were measured when the sandbox was opened. */
export const layersOf = ({ layers }: SandboxView['row']): readonly string[] =>
  layers === null ? [] : (JSON.parse(layers) as string[])

/** A sandbox as the API shows it. */
export function sandboxJson(view: SandboxView) {
  const { row, live } = view
  const spec = JSON.parse(row.spec) as Spec
  const plan = live?.sandbox?.plan
  return {
    id: row.id,
    state: stateOf(view),
    reason: row.reason,
    backend: row.backend,
    level: row.level as Level | null,
    layers: layersOf(row),
    created_at: new Date(row.createdAt).toISOString(),
    expires_at: isEnded(row.state) ? null : timeOf(row.expiresAt),
    ended_at: timeOf(row.endedAt),
    limits: live?.sandbox?.limits ?? spec.limits ?? {},
    network: {
      mode: plan?.network.mode ?? spec.network?.mode ?? 'offline',
      allow_hosts: spec.network?.allowHosts ?? plan?.network.allowHosts ?? [],
      ...(plan?.network.unlisted && { unlisted: plan.network.unlisted }),
    },
    volumes: (spec.volumes ?? []).map(({ mode = 'rw', ...mount }) => ({ ...mount, mode })),
    metadata: callerMetadata(spec),
    public_ports: spec.publicPorts ?? false,
    review: spec.review ?? false,
    restart: spec.restart ?? false,
    generation: row.generation,
    agent_id: row.agentId,
    tenant: row.tenant,
  } satisfies SandboxInfo
}

/** A new sandbox, with its token where there is one. */
export const createdJson = (made: SandboxView & { readonly token?: string | undefined }): SandboxInfo => ({
  ...sandboxJson(made),
  ...(made.token === undefined ? {} : { token: made.token }),
})

/** An ended sandbox with the number of its changes that are not applied. */
export const waitingJson = ({ row, changes }: Waiting): WaitingReview => ({
  ...sandboxJson({ row }),
  changes,
})

/** An approval as the API shows it. */
export const approvalJson = (row: ApprovalRow): Approval => ({
  id: row.id,
  command: row.command,
  cwd: row.cwd,
  decision: JSON.parse(row.decision) as Decision,
  sandbox_id: row.sandboxId,
  exec_id: row.execId,
  agent_id: row.agentId,
  asked_at: new Date(row.askedAt).toISOString(),
  expires_at: new Date(row.expiresAt).toISOString(),
  answered_by: row.answeredBy,
  answered_at: timeOf(row.answeredAt),
  reason: row.reason,
  state: row.state,
  host: row.host === null ? null : (JSON.parse(row.host) as StoredHost),
  scope: row.scope as Approval['scope'],
})

/** The tenant whose records a caller sees; the operator sees all. */
export const tenantOf = (principal: Principal): string | undefined =>
  isOperator(principal) ? undefined : principal.tenant

/** The cursor of the next page of records, where this page is full. */
export function nextSeq(
  items: readonly { readonly seq: number; readonly position?: unknown }[],
  limit: number,
): string | null {
  const last = items.at(-1)
  return items.length === limit && last ? String(positionOf(last)) : null
}

/** The cursor after a row. */
export const cursorOf = (row: { readonly createdAt: number; readonly id: string }): string =>
  Buffer.from(`${row.createdAt} ${row.id}`).toString('base64url')

/** The position of a cursor, if it is one. */
export function cursorFrom(text: string): { readonly createdAt: number; readonly id: string } | undefined {
  const [, at, id] = /^(\d{1,15}) (\w{1,64})$/.exec(Buffer.from(text, 'base64url').toString()) ?? []
  return at && id ? { createdAt: Number(at), id } : undefined
}
