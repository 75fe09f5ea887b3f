import type { EventSink } from '../model/event.ts'
import { answerApproval, pendingApprovals } from '../store/approvals.ts'
import { type NodeRow, noteSettled } from '../store/nodes.ts'
import { changeSandbox, forgetIdempotency, type SandboxRow, unfinishedOf } from '../store/sandboxes.ts'
import type { Store } from '../store/sql.ts'
import { ENDED } from '../supervisor/lifecycle.ts'

/** What settles the sandboxes of a lost node. */
export type LostNodeParts = { readonly store: Store; readonly trail: EventSink }

/**
 * Ends everything that a lost node was running. Each record is written before the state changes, so that a repetition
 * after a crash finds what is left to do; a record may then be there twice, never not at all.
 * A paused sandbox without processes stays: its files are on the disk of its node, and are there again with it.
 */
export async function settleLostNode(
  { store, trail }: LostNodeParts,
  node: NodeRow,
  /** Whether its disk is gone too. */
  isGone: 'for now' | 'with its files' = 'for now',
): Promise<number> {
  const rows = await unfinishedOf(store, node.id, node.epoch + 1, ENDED)
  const lost = rows.filter((row) => isGone === 'with its files' || !isSuspended(row))
  const reason = `node-lost: the lease of node ${node.name} has ended`
  await Promise.all(lost.map((row) => trail.append(lostEvent(row, reason))))
  await store.write(async (tx) => {
    for (const row of lost) {
      await changeSandbox(tx, row.id, { state: 'failed', reason, endedAt: Date.now() }, row)
      if (row.state === 'requested' || row.state === 'provisioning') await forgetIdempotency(tx, row.id)
    }
  })
  await expireApprovals({ store, trail }, node)
  await store.write((tx) => noteSettled(tx, node))
  return lost.length
}

/** Paused without its memory: only such a sandbox has a time until which its files are kept. */
const isSuspended = ({ state, expiresAt }: SandboxRow): boolean => state === 'paused' && expiresAt !== null

const lostEvent = ({ id, agentId, tenant }: SandboxRow, reason: string) => ({
  event: 'SandboxState' as const,
  sandbox_id: id,
  ...(agentId === null ? {} : { agent_id: agentId }),
  tenant,
  state: 'failed',
  reason,
})

/** Nobody waits for the answers any more. */
async function expireApprovals({ store, trail }: LostNodeParts, node: NodeRow): Promise<void> {
  const reason = 'the node that asked is lost'
  for (const row of await pendingApprovals(store, node.id)) {
    const answer = { state: 'expired' as const, by: null, at: Date.now(), reason }
    const isOurs = await store.write((tx) => answerApproval(tx, row.id, answer))
    if (!isOurs) continue
    await trail.append({
      event: 'Approval',
      sandbox_id: row.sandboxId,
      ...(row.execId === null ? {} : { exec_id: row.execId }),
      approval_id: row.id,
      state: 'expired',
      reason,
    })
  }
}
