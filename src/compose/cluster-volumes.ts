import type { NodeRow } from '../cluster/node.ts'
import { nodeFor } from '../cluster/rendezvous.ts'
import { monotonicMs } from '../host/clock.ts'
import { sendOrder } from '../server/cluster/peer-takeover.ts'
import type { ServerParts } from '../server/parts.ts'
import type { Store } from '../store/sql.ts'
import { isArchived, type VolumeRow } from '../store/volumes.ts'
import type { ArchiveStore } from '../supervisor/archives/archive-store.ts'
import { assertFreeSpace } from '../supervisor/readiness.ts'
import { VolumeMoves } from '../supervisor/volumes/volume-moves.ts'
import { newId, type Ringfence } from './compose.ts'
import type { Membership } from './serve-cluster.ts'

/** Volumes in a cluster: which node has one, and how it gets to another. */

type Opened = {
  readonly store: Store
  readonly archives: ArchiveStore | undefined
  readonly ringfence: Pick<Ringfence, 'stateDir'>
}

/** Moves volumes between nodes. */
export function volumeMovesOf(membership: Membership, parts: ServerParts, opened: Opened): VolumeMoves {
  const { node } = membership
  const { volumes, volumeFiles: files, templates } = parts
  const moves = new VolumeMoves({
    store: opened.store,
    volumes,
    files,
    templates,
    newId,
    node,
    hasStore: opened.archives !== undefined,
    assertFreeSpace: () => assertFreeSpace(opened.ringfence.stateDir),
    nameOf: (id) => node.nodes.find((one) => one.id === id)?.name ?? id,
  })
  volumes.takeFromLost = (row) => moves.takeFromLost(row)
  return moves
}

/** Nodes that may get a volume, those of one tenant in the same order, so that its volumes stay together. */
function nodesFor({ node }: Membership, tenant: string): readonly NodeRow[] {
  const open = node.nodes.filter(
    ({ state, role, schedule, id }) =>
      state === 'up' && role !== 'api' && schedule === 'open' && id !== node.id,
  )
  const first = nodeFor(tenant, open)
  return first ? [first, ...open.filter((one) => one !== first)] : []
}

/**
 * The node that answers requests about a volume: the one that has it, or, if that one does not run and there is a current copy, one that
 * takes it. Throws if neither is possible.
 */
export async function nodeOfVolume(
  membership: Membership,
  moves: VolumeMoves,
  row: VolumeRow,
): Promise<string | undefined> {
  const { node } = membership
  const { instance } = row
  if (instance === null || instance === node.id || (await node.findPeer(instance)))
    return instance ?? undefined
  // The node was removed: any node says what is left of its volumes.
  if (!isArchived(row) && !node.nodes.some(({ id }) => id === instance)) return undefined
  if (!isArchived(row)) throw moves.away(row)
  const all = node.nodes.filter(
    ({ state, role, schedule }) => state === 'up' && role !== 'api' && schedule === 'open',
  )
  return nodeFor(row.tenant, all)?.id
}

/** Gives the volumes of this node to others; returns why each of the rest stays. */
export async function giveVolumes(
  membership: Membership,
  moves: VolumeMoves,
): Promise<ReadonlyMap<string, string>> {
  const { peers } = membership
  const stays = new Map<string, string>()
  for (const row of await moves.own())
    await moves
      .give(row, async (offer) => {
        for (const other of nodesFor(membership, row.tenant))
          if ((await sendOrder(peers, other, { kind: 'volume', ...offer })) === 'taken') return true
        return false
      })
      .catch((error: Error) => stays.set(row.id, `volume \`${row.name}\`: ${error.message}`))
  return stays
}

const LOOK_MS = 2000
/** Archiving takes at most this part of the time of each volume. */
const SHARE = 0.1

/** Keeps a copy of every volume that changed in the store of archives, when nothing writes to it. Returns what ends it. */
export function archiveVolumes(
  { node }: Membership,
  moves: VolumeMoves,
  log: (line: string) => void,
): () => void {
  const resting = new Map<string, number>()
  const one = async (row: VolumeRow): Promise<void> => {
    const began = monotonicMs()
    await moves
      .archive(row)
      .catch((error: Error) => log(`volume ${row.id} has no current copy: ${error.message}`))
    const now = monotonicMs()
    resting.set(row.id, now + Math.max(LOOK_MS, (now - began) * (1 / SHARE - 1)))
  }
  const turn = async (): Promise<void> => {
    if (!node.isHeld) return
    const now = monotonicMs()
    const rows = (await moves.own()).filter((row) => !isArchived(row) && (resting.get(row.id) ?? 0) <= now)
    for (const id of resting.keys()) if ((resting.get(id) ?? 0) <= now) resting.delete(id)
    for (const row of rows) await one(row)
  }
  let timer: NodeJS.Timeout
  const next = (): void => {
    timer = setTimeout(
      () =>
        void turn()
          .catch(() => {})
          .finally(next),
      LOOK_MS,
    ).unref()
  }
  next()
  return () => clearTimeout(timer)
}
