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
}

const COLUMNS = 'id, tenant, name, size_mb, read_only, created_at, instance'

const toVolume = (row: Row): VolumeRow => ({
  id: row.id as string,
  tenant: row.tenant as string,
  name: row.name as string,
  sizeMb: Number(row.size_mb),
  readOnly: Number(row.read_only) === 1,
  createdAt: Number(row.created_at),
  instance: row.instance as string | null,
})

/** How much a tenant may have. */
export type VolumeQuota = { readonly count: number; readonly totalMb: number }

/** Adds a volume; throws if its name is taken, or if the tenant would exceed its quota. */
export async function insertVolume(tx: Tx, row: VolumeRow, quota: VolumeQuota): Promise<void> {
  const own = (await tx.run(`SELECT ${COLUMNS} FROM volumes WHERE tenant = ?`, [row.tenant])).map(toVolume)
  if (own.some(({ name }) => name === row.name))
    throw new SandboxError('conflict', `there is a volume \`${row.name}\` already`, {
      hint: 'choose another name, or remove the volume first',
    })
  const totalMb = own.reduce((sum, { sizeMb }) => sum + sizeMb, row.sizeMb)
  if (own.length >= quota.count || totalMb > quota.totalMb)
    throw new SandboxError('too-large', 'the volumes of this tenant exceed its quota', {
      hint: `the quota is ${quota.count} volumes and ${quota.totalMb} MB in total; ask for less, or remove some first`,
    })
  await tx.run(`INSERT INTO volumes (${COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)`, [
    row.id,
    row.tenant,
    row.name,
    row.sizeMb,
    row.readOnly ? 1 : 0,
    row.createdAt,
    row.instance,
  ])
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

/** The node that has the directory of a volume, by its id. */
export async function volumeNode(store: Store, id: string): Promise<string | undefined> {
  const rows = await store.read('SELECT instance FROM volumes WHERE id = ?', [id])
  return (rows[0]?.instance as string | null | undefined) ?? undefined
}

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
