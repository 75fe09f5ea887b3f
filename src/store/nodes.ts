import type { Row, Store, Tx } from './sql.ts'

/** Whether a node runs, by its lease: `lost` was fenced by another node, `left` went on its own. */
type NodeState = 'up' | 'lost' | 'left'
/** Whether a node takes new sandboxes. */
export type NodeSchedule = 'open' | 'cordoned' | 'draining'
/** What a node does: it serves the API, runs sandboxes, or both. */
type NodeRole = 'all' | 'api' | 'node'

/** What a node has and uses, as it says itself with each renewal. */
export type NodeFacts = {
  readonly cpus: number
  readonly memoryMb: number
  readonly diskMb: number
  readonly sandboxes: number
  readonly used: {
    readonly cpus: number
    readonly memoryMb: number
    readonly diskMb: number
    readonly sandboxes: number
  }
  readonly backends: readonly string[]
  readonly labels: Readonly<Record<string, string>>
  /** Creates that failed in a row for a reason of the node's own. */
  readonly failures: number
  /** Whether its program counts how often a volume is opened for writing; older ones do not. */
  readonly marksVolumes?: boolean
  /** While it drains: what stays, and why. */
  readonly staying?: readonly { readonly id: string; readonly why: string }[]
}

/** One server of a cluster. Times are milliseconds of the database's clock. */
export type NodeRow = {
  readonly id: string
  readonly epoch: number
  readonly state: NodeState
  readonly schedule: NodeSchedule
  readonly role: NodeRole
  readonly name: string
  /** Where other nodes reach it. */
  readonly url: string
  /** SHA-256 of its certificate in this epoch. */
  readonly fingerprint: string
  /** Its chain of the audit log. */
  readonly chain: string
  readonly version: string
  readonly leaseMs: number
  readonly leaseUntil: number
  readonly joinedAt: number
  readonly facts: NodeFacts
  /** The node that fenced it. */
  readonly fencedBy: string | null
  /** Whether its sandboxes and approvals were settled after it was lost. */
  readonly settled: boolean
  /** How long its lease still holds, by the database's clock. */
  readonly leftMs: number
}

/** What a node says about itself when it registers. */
export type NewNode = Pick<
  NodeRow,
  'id' | 'role' | 'name' | 'url' | 'fingerprint' | 'chain' | 'version' | 'leaseMs' | 'facts'
>

/** The database's clock in milliseconds; unlike `now()` it goes on during a transaction. */
const CLOCK = '(EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint'

const ALL = `id, epoch, state, schedule, role, name, url, fingerprint, chain, version, lease_ms, lease_until, joined_at,
  facts, fenced_by, settled, lease_until - ${CLOCK} AS left_ms`

const toNode = (row: Row): NodeRow => ({
  id: row.id as string,
  epoch: row.epoch as number,
  state: row.state as NodeState,
  schedule: row.schedule as NodeSchedule,
  role: row.role as NodeRole,
  name: row.name as string,
  url: row.url as string,
  fingerprint: row.fingerprint as string,
  chain: row.chain as string,
  version: row.version as string,
  leaseMs: row.lease_ms as number,
  leaseUntil: row.lease_until as number,
  joinedAt: row.joined_at as number,
  facts: JSON.parse(row.facts as string) as NodeFacts,
  fencedBy: row.fenced_by as string | null,
  settled: row.settled === 1,
  leftMs: row.left_ms as number,
})

/**
 * Starts a new epoch of a node and returns it. INVARIANT: the row is locked against the writes of its earlier epoch, so that
 * one of them is either on disk before, or refused.
 */
export async function registerNode(tx: Tx, node: NewNode): Promise<number> {
  await tx.run('SELECT id FROM nodes WHERE id = ? FOR UPDATE', [node.id])
  const { id, role, name, url, fingerprint, chain, version, leaseMs } = node
  const [row] = await tx.run(
    `INSERT INTO nodes (id, epoch, state, schedule, role, name, url, fingerprint, chain, version, lease_ms, lease_until,
       joined_at, facts, settled)
     VALUES (?, 1, 'up', 'open', ?, ?, ?, ?, ?, ?, ?, ${CLOCK} + ?, ${CLOCK}, ?, 0)
     ON CONFLICT (id) DO UPDATE SET epoch = nodes.epoch + 1, state = 'up',
       schedule = CASE WHEN nodes.schedule = 'draining' THEN 'cordoned' ELSE nodes.schedule END,
       role = excluded.role, name = excluded.name, url = excluded.url, fingerprint = excluded.fingerprint,
       chain = excluded.chain, version = excluded.version, lease_ms = excluded.lease_ms,
       lease_until = excluded.lease_until, facts = excluded.facts, fenced_by = NULL, settled = 0
     RETURNING epoch`,
    [id, role, name, url, fingerprint, chain, version, leaseMs, leaseMs, JSON.stringify(node.facts)],
  )
  return row?.epoch as number
}

/** Who writes: a node in one of its epochs. */
export type NodeEpoch = Pick<NodeRow, 'id' | 'epoch'>

/** Extends a lease; returns how the node is to take new sandboxes, or nothing if it was fenced. */
export async function renewLease(
  tx: Tx,
  { id, epoch }: NodeEpoch,
  facts: NodeFacts,
): Promise<NodeSchedule | undefined> {
  const [row] = await tx.run(
    `UPDATE nodes SET lease_until = ${CLOCK} + lease_ms, facts = ? WHERE id = ? AND epoch = ? AND state = 'up'
     RETURNING schedule`,
    [JSON.stringify(facts), id, epoch],
  )
  return row?.schedule as NodeSchedule | undefined
}

/**
 * Finds a row if this epoch of the node may write now. INVARIANT: the lock is held until the end of the transaction and excludes
 * `fenceNode` and `registerNode`, not renewals: what is written before a takeover is on disk before it.
 */
export function leaseQuery({ id, epoch }: NodeEpoch): string {
  // Without parameters, so that it can go with BEGIN.
  if (!/^[0-9a-f]{1,64}$/.test(id) || !Number.isSafeInteger(epoch)) throw new Error('not the id of a node')
  return `SELECT 1 AS held FROM nodes WHERE id = '${id}' AND epoch = ${epoch} AND state = 'up'
    AND lease_until > ${CLOCK} FOR KEY SHARE`
}

/** Marks a node whose lease has ended as lost; returns whether this call did it. */
export async function fenceNode(tx: Tx, { id, epoch }: NodeEpoch, by: string): Promise<boolean> {
  const expired = await tx.run(
    `SELECT id FROM nodes WHERE id = ? AND epoch = ? AND state = 'up' AND lease_until <= ${CLOCK} FOR UPDATE`,
    [id, epoch],
  )
  if (expired.length === 0) return false
  await tx.run("UPDATE nodes SET state = 'lost', fenced_by = ? WHERE id = ?", [by, id])
  return true
}

/** Notes that everything of a lost node was settled. */
export async function noteSettled(tx: Tx, { id, epoch }: NodeEpoch): Promise<void> {
  await tx.run("UPDATE nodes SET settled = 1 WHERE id = ? AND epoch = ? AND state = 'lost'", [id, epoch])
}

/** Ends a lease on purpose. */
export async function leaveCluster(tx: Tx, { id, epoch }: NodeEpoch): Promise<void> {
  await tx.run(
    `UPDATE nodes SET state = 'left', lease_until = ${CLOCK}, settled = 1 WHERE id = ? AND epoch = ? AND state = 'up'`,
    [id, epoch],
  )
}

/** Lists all nodes by name. */
export async function listNodes(store: Store): Promise<readonly NodeRow[]> {
  return (await store.read(`SELECT ${ALL} FROM nodes ORDER BY name, id`)).map(toNode)
}

/** Sets whether a node takes new sandboxes; returns whether it exists. */
export async function scheduleNode(tx: Tx, id: string, schedule: NodeSchedule): Promise<boolean> {
  const rows = await tx.run('UPDATE nodes SET schedule = ? WHERE id = ? RETURNING id', [schedule, id])
  return rows.length > 0
}

/** Removes a node that does not run any more; returns whether it did. */
export async function removeNode(tx: Tx, id: string): Promise<boolean> {
  const rows = await tx.run("DELETE FROM nodes WHERE id = ? AND state <> 'up' RETURNING id", [id])
  return rows.length > 0
}
