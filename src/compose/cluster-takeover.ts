import type { ClusterNode, NodeRow } from '../cluster/node.ts'
import { nodeFor } from '../cluster/rendezvous.ts'
import { NoRoom } from '../cluster/reservations.ts'
import { Restarts } from '../cluster/restarts.ts'
import { SandboxError } from '../model/errors.ts'
import { mayOutlive, type Spec } from '../model/spec.ts'
import { fetchArchive } from '../server/cluster/peer-archives.ts'
import { type PeerOrder, sendOrder, type TakeOrder } from '../server/cluster/peer-takeover.ts'
import type { ServerParts } from '../server/parts.ts'
import { findSandbox, type SandboxRow, unfinishedOf } from '../store/sandboxes.ts'
import type { Store } from '../store/sql.ts'
import type { ArchiveStore } from '../supervisor/archives/archive-store.ts'
import { ENDED } from '../supervisor/lifecycle/lifecycle.ts'
import { isRestartable } from '../supervisor/lifecycle/takeover.ts'
import type { SharedArchives, Template } from '../supervisor/snapshots/templates.ts'
import type { VolumeMoves } from '../supervisor/volumes/volume-moves.ts'
import type { Membership } from './serve-cluster.ts'

/** Sandboxes that change their node, and the archives that they need there. */

/** Finds other nodes for sandboxes. */
export function restartsOf(membership: Membership, parts: ServerParts, store: Store): Restarts {
  const { node, peers, reservations, facts, config } = membership
  return new Restarts({
    store,
    trail: parts.record,
    node,
    facts,
    needOf: (spec) => reservations.needOf(spec),
    waitMs: (config.wait_secs ?? 10) * 1000,
    async ask(other, { id, instance, epoch }, { reason, snapshot }) {
      const order: TakeOrder = { kind: 'take', id, instance, epoch, reason, snapshot }
      if (other.id !== node.id) return sendOrder(peers, other, order)
      try {
        return (await takeHere(parts, store, order)) ? 'taken' : 'gone'
      } catch (error) {
        parts.log(`sandbox ${id} cannot start here: ${(error as Error).message}`)
        return error instanceof NoRoom ? error.refusal : 'failing'
      }
    },
  })
}

/** What other nodes ask of this one. Returns whether it was done; false: there is nothing to do any more. */
export const carryingOut =
  (parts: ServerParts, store: Store, moves: VolumeMoves) =>
  async (order: PeerOrder): Promise<boolean> => {
    if (order.kind === 'volume') return moves.accept(order)
    if (order.kind === 'take') return takeHere(parts, store, order)
    const found = await parts.templates.find(order.tenant, order.id)
    if (found) await parts.templates.bring(found)
    return found !== undefined
  }

/** Takes a sandbox over, with its last snapshot. */
async function takeHere(parts: ServerParts, store: Store, order: TakeOrder): Promise<boolean> {
  const { supervisor, templates, keys } = parts
  const row = await findSandbox(store, order.id)
  const isTheirs = row?.instance === order.instance && row.epoch === order.epoch
  if (!row || !isTheirs || !mayMove(row, order)) return false
  const { tenant } = row
  const isComplete = mayOutlive(row.backend) && !(JSON.parse(row.spec) as Spec).restart
  const snapshot = isComplete ? undefined : await filesOf(parts, row, order.snapshot)
  // Before the sandbox is ours: a node that cannot get the files leaves it to another one.
  if (snapshot) await templates.bring(snapshot)
  // SECURITY: the spec is judged again, for the key that created the sandbox; without the key as for any key of its tenant.
  const principal = (await keys.principalById(row.keyId)) ?? { keyId: row.keyId, tenant, scopes: [] }
  return supervisor.takeOver(row, { principal, snapshot: snapshot?.id, reason: order.reason })
}

/** A paused sandbox has no processes to lose, so it moves with its files whether it asked for that or not. */
const mayMove = (row: SandboxRow, { snapshot }: TakeOrder): boolean =>
  isRestartable(row) || (row.state === 'paused' && snapshot !== undefined)

async function filesOf(
  { templates }: ServerParts,
  { tenant, id }: SandboxRow,
  given: string | undefined,
): Promise<Template | undefined> {
  if (given === undefined) {
    const all = await templates.list({ tenant, sandboxId: id, limit: 20 })
    return all.find(({ kind }) => kind === 'snapshot' || kind === 'move')
  }
  const found = await templates.find(tenant, given)
  if (found?.id === given) return found
  throw new SandboxError('not-found', `the files of sandbox ${id} are gone`)
}

/** Starts again what an earlier run of this node left, and what it ended itself while it had no lease. */
export async function restartOwn(
  { node }: Membership,
  restarts: Restarts,
  {
    store,
    isLive,
    log,
  }: {
    readonly store: Store
    readonly isLive: (id: string) => boolean
    readonly log: (line: string) => void
  },
): Promise<void> {
  const unfinished = await unfinishedOf(store, node.id, node.epoch + 1, ENDED)
  const rows = unfinished.filter((row) => isRestartable(row) && !isLive(row.id))
  if (rows.length === 0) return
  const count = await restarts.all(rows, 'node-lost: its node had no lease for a while')
  log(`${count} of ${rows.length} sandboxes that this node had are started again`)
}

/** Archives of other nodes come from the nodes that have them. */
export const sharedArchives = (
  membership: Membership | undefined,
  store: ArchiveStore | undefined,
): SharedArchives | undefined =>
  membership && {
    node: membership.node.id,
    store,
    async fetch(nodes, { name }) {
      for (const id of nodes) {
        const node = await membership.node.findPeer(id)
        if (node) return fetchArchive(membership.peers, node, name)
      }
      throw new SandboxError('unreachable', `no node that has the archive \`${name}\` runs`, {
        hint: 'try again when one of them is back',
        retryAfterSecs: 10,
      })
    },
    async copy({ id, tenant }) {
      for (const node of othersFor(membership.node, id))
        if ((await sendOrder(membership.peers, node, { kind: 'copy', id, tenant })) === 'taken')
          return [node.id]
      return []
    },
  }

/** Other nodes that run sandboxes, in an order of their own for each name, so that copies are spread. */
function othersFor({ id, nodes }: ClusterNode, name: string): readonly NodeRow[] {
  const others = nodes.filter((one) => one.id !== id && one.state === 'up' && one.role !== 'api')
  const first = nodeFor(name, others)
  return first ? [first, ...others.filter((one) => one !== first)] : []
}
