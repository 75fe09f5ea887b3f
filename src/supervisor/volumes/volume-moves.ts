import { createReadStream } from 'node:fs'
import { SandboxError } from '../../model/errors.ts'
import type { Store } from '../../store/sql.ts'
import {
  claimVolume,
  isArchived,
  noteArchive,
  openForWriting,
  type VolumeRow,
  volumeById,
  volumesOn,
} from '../../store/volumes.ts'
import type { Template, Templates } from '../snapshots/templates.ts'
import { ROOT, type VolumeFiles } from './volume-files.ts'
import type { Volumes } from './volumes.ts'

type Parts = {
  readonly store: Store
  readonly volumes: Volumes
  readonly files: VolumeFiles
  readonly templates: Templates
  readonly newId: (prefix: string) => string
  /** This node, and its run. */
  readonly node: { readonly id: string; readonly epoch: number }
  /** Whether archives are in a store that outlives nodes. */
  readonly hasStore: boolean
  readonly assertFreeSpace: () => void
  /** The name of a node, for messages. */
  readonly nameOf: (node: string) => string
}

/** A volume as its node gives it away. */
export type VolumeOffer = Pick<VolumeRow, 'id' | 'version'> & {
  readonly instance: string
  readonly epoch: number
}

const MB = 1024 * 1024
/** An archive may be larger than the volume: each file has a header, and holes are written. */
const MOST_TIMES = 2
const MORE_BYTES = 64 * MB

/**
 * Volumes that change their node. INVARIANT: a volume is never written on two nodes, and never used in an old state: the record names
 * one node and counts how often the volume was opened for writing, and only a copy with the present count moves.
 */
export class VolumeMoves {
  readonly #parts: Parts
  /** Volumes that are on their way here. */
  readonly #coming = new Map<string, Promise<VolumeRow>>()

  constructor(parts: Parts) {
    this.#parts = parts
  }

  /** The volumes of this node. */
  own(): Promise<readonly VolumeRow[]> {
    return volumesOn(this.#parts.store, this.#parts.node.id)
  }

  /** Puts a copy of the volume as it is now into the archives; undefined: something writes to it. */
  async archive(row: VolumeRow): Promise<Template | undefined> {
    const { volumes, files, templates, store, newId } = this.#parts
    if (volumes.isWritten(row)) return undefined
    this.#parts.assertFreeSpace()
    const record = {
      id: newId('snp'),
      kind: 'volume' as const,
      tenant: row.tenant,
      name: null,
      sandboxId: null,
      createdAt: Date.now(),
      data: {},
    }
    const most = row.sizeMb * MB * MOST_TIMES + MORE_BYTES
    const kept = await files.inMove(row, 'ro', (sandbox) => templates.keep(sandbox, [ROOT], record, most))
    if (!(await store.write((tx) => noteArchive(tx, row, kept.id)))) {
      await templates.remove(kept)
      return undefined
    }
    await this.#forget(row)
    await templates.dropLocal(kept)
    return kept
  }

  async #forget({ tenant, archive }: Pick<VolumeRow, 'tenant' | 'archive'>): Promise<void> {
    const old = archive === null ? undefined : await this.#parts.templates.find(tenant, archive)
    if (old) await this.#parts.templates.remove(old)
  }

  /** Gives a volume that nothing uses to another node. Throws if it stays. */
  async give(row: VolumeRow, offer: (offer: VolumeOffer) => Promise<boolean>): Promise<void> {
    const { volumes, files, store, node } = this.#parts
    await files.release(row)
    await volumes.leaving(row, async () => {
      const fresh = await volumeById(store, row.id)
      if (fresh?.instance !== node.id) return
      if (!isArchived(fresh) && !(await this.archive(fresh)))
        throw new SandboxError('conflict', 'it was opened for writing')
      const { id, version } = fresh
      const isTaken = await offer({ id, version, instance: node.id, epoch: node.epoch }).catch(() => false)
      // INVARIANT: a node that did not answer cannot take it any more.
      if (!isTaken && (await store.write((tx) => openForWriting(tx, id, node.id))))
        throw new SandboxError('conflict', 'no other node took it')
      await volumes.dropDirectory(row)
    })
  }

  /** Takes what another node offers; returns whether this node has it now. */
  async accept({ id, instance, version, epoch }: VolumeOffer): Promise<boolean> {
    const row = await volumeById(this.#parts.store, id)
    if (row?.instance !== instance || row.version !== version) return false
    await this.#take(row, epoch)
    return true
  }

  /** Takes a volume from a node that does not run, if there is a copy with everything that was written. */
  async takeFromLost(row: VolumeRow): Promise<VolumeRow> {
    if (!isArchived(row)) throw this.away(row)
    return this.#take(row)
  }

  /** Why a volume cannot be used while its node does not run. */
  away({ name, instance, archive }: VolumeRow): SandboxError {
    const where = `volume \`${name}\` is on node ${this.#parts.nameOf(instance ?? '')}, which does not run`
    const why =
      archive === null ? 'there is no copy of it' : 'it was opened for writing after its last copy was made'
    return new SandboxError('unreachable', `${where}, and ${why}`, {
      hint: 'start the node again; a node that is gone for good: `ringfence node rm`, then remove the volume',
      retryAfterSecs: 30,
    })
  }

  #take(row: VolumeRow, epoch?: number): Promise<VolumeRow> {
    const under = this.#coming.get(row.id)
    if (under) return under
    const coming = this.#bring(row, epoch).finally(() => this.#coming.delete(row.id))
    this.#coming.set(row.id, coming)
    return coming
  }

  async #bring(row: VolumeRow, epoch: number | undefined): Promise<VolumeRow> {
    const { volumes, templates, store, node, hasStore } = this.#parts
    // INVARIANT: the caller may have read the row before an earlier request brought the volume here; it may be in use.
    const fresh = await volumeById(store, row.id)
    if (fresh?.instance === node.id) return fresh
    this.#parts.assertFreeSpace()
    const copy = row.archive === null ? undefined : await templates.find(row.tenant, row.archive)
    if (!copy) throw this.away(row)
    await templates.bring(copy)
    await volumes.newDirectory(row)
    try {
      await this.#unpack(row, copy)
      const claim = { to: node.id, epoch, keepsArchive: hasStore }
      if (!(await store.write((tx) => claimVolume(tx, row, claim))))
        throw new SandboxError('conflict', `volume \`${row.name}\` was used on its node meanwhile`, {
          hint: 'repeat the request',
          retryAfterSecs: 1,
        })
    } catch (error) {
      await this.#undo(row)
      throw error
    }
    await volumes.record(row, { action: 'move', from: row.instance, to: node.id })
    await (hasStore ? templates.dropLocal(copy) : templates.remove(copy))
    return { ...row, instance: node.id }
  }

  async #unpack(row: VolumeRow, { data }: Template): Promise<void> {
    const { templates, files } = this.#parts
    const path = templates.archivePath(data.archives?.[0]?.name ?? '')
    if (path === undefined)
      throw new SandboxError('launch-failed', `the copy of volume \`${row.name}\` is missing`)
    await files.inMove(row, 'rw', (sandbox) => sandbox.files.unpack(ROOT, createReadStream(path)))
  }

  /** The write may have arrived although its answer did not: without an answer of the database the directory stays. */
  async #undo(row: VolumeRow): Promise<void> {
    const { store, volumes, node } = this.#parts
    const isOurs = await volumeById(store, row.id).then(
      (fresh) => fresh?.instance === node.id,
      () => true,
    )
    if (!isOurs) await volumes.dropDirectory(row)
  }
}
