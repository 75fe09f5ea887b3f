import type { EventSink } from '../model/event.ts'
import { answerApproval, pendingApprovals } from '../store/approvals.ts'
import { type NodeRow, noteSettled } from '../store/nodes.ts'
import { changeSandbox, forgetIdempotency, type SandboxRow, unfinishedOf } from '../store/sandboxes.ts'
import type { Store } from '../store/sql.ts'
import { ENDED } from '../supervisor/lifecycle/lifecycle.ts'
import { isRestartable } from '../supervisor/lifecycle/takeover.ts'

/** What settles the sandboxes of a lost node. */
export type LostNodeParts = { readonly store: Store; readonly trail: EventSink }

type SettleParts = LostNodeParts & {
  /** Starts sandboxes again on other nodes; returns how many were. */
  readonly restart?: ((rows: readonly SandboxRow[], reason: string) => Promise<number>) | undefined
}

/**
 * Ends everything that a lost node was running. Each record is written before the state changes, so that a repetition
 * after a crash finds what is left to do; a record may then be there twice, never not at all.
 * A paused sandbox without processes stays: its files are on the disk of its node, and are there again with it.
 */
export async function settleLostNode(
  { store, trail, restart }: SettleParts,
  node: NodeRow,
  /** Whether its disk is gone too. */
  isGone: 'for now' | 'with its files' = 'for now',
): Promise<{ readonly failed: number; readonly restarted: number }> {
  const rows = await unfinishedOf(store, node.id, node.epoch + 1, ENDED)
  const again = restart ? rows.filter(isRestartable) : []
  const lost = rows.filter(
    (row) => !again.includes(row) && (isGone === 'with its files' || !isSuspended(row)),
  )
  const reason = `node-lost: the lease of node ${node.name} has ended`
  await reportLost({ store, trail }, lost, reason)
  await expireApprovals({ store, trail }, node)
  const restarted = (await restart?.(again, reason)) ?? 0
  await store.write((tx) => noteSettled(tx, node))
  return { failed: lost.length + again.length - restarted, restarted }
}

/** Records sandboxes as failed. */
export async function reportLost(
  { store, trail }: LostNodeParts,
  lost: readonly SandboxRow[],
  reason: string,
): Promise<void> {
  await Promise.all(lost.map((row) => trail.append(lostEvent(row, reason))))
  await store.write(async (tx) => {
    for (const row of lost) {
      await changeSandbox(tx, row.id, { state: 'failed', reason, endedAt: Date.now() }, row)
      if (row.state === 'requested' || row.state === 'provisioning') await forgetIdempotency(tx, row.id)
    }
  })
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
