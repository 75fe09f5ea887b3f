import { SandboxError } from '../model/errors.ts'
import type { Row, Store, Tx } from './sql.ts'

/** A named directory of a tenant that outlives sandboxes. */
export type VolumeRow = {
  readonly id: string
  readonly tenant: string
  readonly name: string
  readonly sizeMb: number
  readonly readOnly: boolean
  readonly createdAt: number
  /** The node that has the directory; null for a server that is alone. */
  readonly instance: string | null
  /** Grows whenever the volume is opened for writing. */
  readonly version: number
  /** A copy of its files (a row of `snapshots`), and the version that it is a copy of. */
  readonly archive: string | null
  readonly archived: number | null
}

/** Whether the copy has everything that was written. */
export const isArchived = ({ archive, archived, version }: VolumeRow): boolean =>
  archive !== null && archived === version

const COLUMNS = 'id, tenant, name, size_mb, read_only, created_at, instance, version, archive, archived'

const toVolume = (row: Row): VolumeRow => ({
  id: row.id as string,
  tenant: row.tenant as string,
  name: row.name as string,
  sizeMb: Number(row.size_mb),
  readOnly: Number(row.read_only) === 1,
  createdAt: Number(row.created_at),
  instance: row.instance as string | null,
  version: Number(row.version),
  archive: row.archive as string | null,
  archived: row.archived === null ? null : Number(row.archived),
})

/** How much a tenant may have. */
export type VolumeQuota = { readonly count: number; readonly totalMb: number }

/** Adds a volume; returns why not. An error would make every other write of its transaction start again. */
export async function insertVolume(
  tx: Tx,
  row: VolumeRow,
  quota: VolumeQuota,
): Promise<SandboxError | undefined> {
  const own = (await tx.run(`SELECT ${COLUMNS} FROM volumes WHERE tenant = ?`, [row.tenant])).map(toVolume)
  if (own.some(({ name }) => name === row.name))
    return new SandboxError('conflict', `there is a volume \`${row.name}\` already`, {
      hint: 'choose another name, or remove the volume first',
    })
  const totalMb = own.reduce((sum, { sizeMb }) => sum + sizeMb, row.sizeMb)
  if (own.length >= quota.count || totalMb > quota.totalMb)
    return new SandboxError('too-large', 'the volumes of this tenant exceed its quota', {
      hint: `the quota is ${quota.count} volumes and ${quota.totalMb} MB in total; ask for less, or remove some first`,
    })
  await tx.run(`INSERT INTO volumes (${COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, [
    row.id,
    row.tenant,
    row.name,
    row.sizeMb,
    row.readOnly ? 1 : 0,
    row.createdAt,
    row.instance,
    row.version,
    row.archive,
    row.archived,
  ])
  return undefined
}

/** Removes a volume. */
export async function removeVolume(tx: Tx, id: string): Promise<void> {
  await tx.run('DELETE FROM volumes WHERE id = ?', [id])
}

/** All volumes of a tenant, newest first. */
export async function listVolumes(store: Store, tenant: string): Promise<readonly VolumeRow[]> {
  const rows = await store.read(
    `SELECT ${COLUMNS} FROM volumes WHERE tenant = ? ORDER BY created_at DESC, id DESC`,
    [tenant],
  )
  return rows.map(toVolume)
}

/** One volume by its id, of any tenant. */
export async function volumeById(store: Store, id: string): Promise<VolumeRow | undefined> {
  const [row] = await store.read(`SELECT ${COLUMNS} FROM volumes WHERE id = ?`, [id])
  return row && toVolume(row)
}

/** The volumes whose directories a node has. */
export async function volumesOn(store: Store, node: string): Promise<readonly VolumeRow[]> {
  return (await store.read(`SELECT ${COLUMNS} FROM volumes WHERE instance = ?`, [node])).map(toVolume)
}

/** How many volumes each node has. */
export async function countVolumes(store: Store): Promise<ReadonlyMap<string, number>> {
  const rows = await store.read(
    'SELECT instance, COUNT(*) AS volumes FROM volumes WHERE instance IS NOT NULL GROUP BY instance',
  )
  return new Map(rows.map((row) => [row.instance as string, Number(row.volumes)]))
}

/**
 * Notes that a volume may be written from now on; returns whether the node still has it. INVARIANT: before the first write, so
 * that a copy with the same version has everything.
 */
export async function openForWriting(tx: Tx, id: string, node: string): Promise<boolean> {
  const sql = 'UPDATE volumes SET version = version + 1 WHERE id = ? AND instance = ? RETURNING id'
  return (await tx.run(sql, [id, node])).length > 0
}

/** Notes a copy of a volume; returns whether the volume was not opened for writing meanwhile. */
export async function noteArchive(tx: Tx, row: VolumeRow, archive: string): Promise<boolean> {
  const rows = await tx.run(
    'UPDATE volumes SET archive = ?, archived = version WHERE id = ? AND instance = ? AND version = ? RETURNING id',
    [archive, row.id, row.instance, row.version],
  )
  return rows.length > 0
}

/** The copies of the volumes of a node count no more. */
export async function forgetArchivesOn(tx: Tx, node: string): Promise<void> {
  await tx.run('UPDATE volumes SET archived = NULL WHERE instance = ?', [node])
}

/** Who takes a volume, and from whom. */
export type VolumeClaim = {
  readonly to: string
  /** The run of the former node that gives it away; absent: the former node does not run. */
  readonly epoch?: number | undefined
  /** Whether the copy that it is made of stays. */
  readonly keepsArchive: boolean
}

/**
 * Makes a volume another node's; returns whether it was. INVARIANT: only with a copy of the present version, and only if the former
 * node does not run or gave it away in this run. The lock keeps the former node from starting again until this is written; what it
 * wrote before it was lost is on disk, because `fenceNode` waits for it.
 */
export async function claimVolume(
  tx: Tx,
  row: VolumeRow,
  { to, epoch, keepsArchive }: VolumeClaim,
): Promise<boolean> {
  const [former] = await tx.run('SELECT epoch, state, facts FROM nodes WHERE id = ? FOR KEY SHARE', [
    row.instance,
  ])
  if (former && former.state === 'up' && Number(former.epoch) !== epoch) return false
  if (former && epoch !== undefined && Number(former.epoch) !== epoch) return false
  // SECURITY: an older program does not count its writes.
  if (former && !marksVolumes(String(former.facts))) return false
  const kept = keepsArchive ? '' : ', archive = NULL, archived = NULL'
  const rows = await tx.run(
    `UPDATE volumes SET instance = ?${kept} WHERE id = ? AND instance = ? AND version = ? AND archived = version
     RETURNING id`,
    [to, row.id, row.instance, row.version],
  )
  return rows.length > 0
}

const marksVolumes = (facts: string): boolean =>
  (JSON.parse(facts) as { marksVolumes?: boolean }).marksVolumes === true

/** One volume of a tenant by id or name. */
export async function findVolume(
  store: Store,
  tenant: string,
  idOrName: string,
): Promise<VolumeRow | undefined> {
  const rows = await store.read(
    `SELECT ${COLUMNS} FROM volumes WHERE tenant = ? AND (id = ? OR name = ?) LIMIT 1`,
    [tenant, idOrName, idOrName],
  )
  return rows[0] && toVolume(rows[0])
}
