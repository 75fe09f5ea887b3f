import { randomBytes } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, renameSync } from 'node:fs'
import { join } from 'node:path'
import { diskUsage } from '../../host/files/disk-usage.ts'
import { SandboxError } from '../../model/errors.ts'
import type { EventSink, Json } from '../../model/event.ts'
import type { Spec } from '../../model/spec.ts'
import { liveWithVolumes } from '../../store/sandboxes.ts'
import type { Store } from '../../store/sql.ts'
import {
  findVolume,
  insertVolume,
  listVolumes,
  openForWriting,
  removeVolume,
  type VolumeQuota,
  type VolumeRow,
  volumeById,
} from '../../store/volumes.ts'
import type { Principal } from '../access/keys.ts'
import type { LiveSandbox } from '../lifecycle/live-sandbox.ts'
import { removeTree } from '../private-directories.ts'

export type { VolumeRow } from '../../store/volumes.ts'

/** The operator's limits for volumes. */
type VolumeLimits = VolumeQuota & {
  /** The size of a volume that is created without one. */
  readonly defaultMb: number
  /** The largest size of one volume. */
  readonly maxMb: number
}

type Parts = {
  readonly store: Store
  readonly trail: EventSink
  /** Where the directories are. */
  readonly dir: string
  readonly newId: (prefix: string) => string
  readonly limits: () => VolumeLimits
  /** In a cluster: this node. */
  readonly node?: string | undefined
}

/** A request for a volume. */
export type NewVolume = {
  readonly name: string
  readonly sizeMb?: number | undefined
  /** The volume is the copy of another one and is never written. */
  readonly readOnly?: boolean
}

const MB = 1024 * 1024
const MOST_IGNORED_BYTES = 16 * MB
const NAME = /^[A-Za-z0-9_-]{1,128}$/
const ID = /^vol_[0-9a-f]+$/
const ASIDE = '.old-'

/**
 * Named directories of tenants that outlive sandboxes. A volume is a directory of the server; a caller names it by name or id
 * and never learns its path. SECURITY: a volume of another tenant is reported as not found.
 */
export class Volumes {
  readonly #parts: Parts
  /** Sandboxes that have not ended; set after the supervisor exists. */
  live: () => Iterable<LiveSandbox> = () => []
  /** Takes a volume from a node that does not run; set in a cluster. */
  takeFromLost: ((row: VolumeRow) => Promise<VolumeRow>) | undefined
  /** What this server itself has opened of each volume, besides sandboxes of callers. */
  readonly #opened = new Map<string, { readers: number; writers: number }>()
  /** Volumes that are about to leave this node or to be removed, and how others are refused meanwhile. */
  readonly #leaving = new Map<string, (row: VolumeRow) => SandboxError>()

  constructor(parts: Parts) {
    this.#parts = parts
    mkdirSync(parts.dir, { recursive: true, mode: 0o700 })
  }

  list(tenant: string): Promise<readonly VolumeRow[]> {
    return listVolumes(this.#parts.store, tenant)
  }

  async get(tenant: string, idOrName: string): Promise<VolumeRow> {
    const found = await findVolume(this.#parts.store, tenant, idOrName)
    if (found) return found
    throw new SandboxError('not-found', `no such volume \`${idOrName.slice(0, 128)}\``, {
      hint: 'list volumes with `ringfence volume ls`',
    })
  }

  async create(
    { tenant, keyId }: Principal,
    { name, sizeMb, readOnly = false }: NewVolume,
  ): Promise<VolumeRow> {
    const { store, trail, newId, limits } = this.#parts
    const { defaultMb, maxMb, ...quota } = limits()
    const row = {
      id: newId('vol'),
      tenant,
      name: checkName(name),
      sizeMb: sizeMb ?? Math.min(defaultMb, maxMb),
      readOnly,
      createdAt: Date.now(),
      instance: this.#parts.node ?? null,
      version: 0,
      archive: null,
      archived: null,
    }
    if (row.sizeMb > maxMb)
      throw new SandboxError(
        'resource-limit-exceeded',
        `${row.sizeMb} MB is above the limit of ${maxMb} MB`,
        {
          hint: 'the operator sets `max_mb` in [volumes]',
        },
      )
    // The directory first: a record always has one, and a directory without a record is harmless.
    mkdirSync(this.pathOf(row), { mode: 0o755 })
    try {
      const refusal = await store.write((tx) => insertVolume(tx, row, quota))
      if (refusal) throw refusal
      await trail.append({
        event: 'Volume',
        ...facts(row),
        action: 'create',
        size_mb: row.sizeMb,
        key_id: keyId,
      })
      return row
    } catch (error) {
      await store.write((tx) => removeVolume(tx, row.id)).catch(() => {})
      await removeTree(this.pathOf(row))
      throw error
    }
  }

  /** Refused while a sandbox that has not ended has it mounted; paused sandboxes count. */
  async remove({ tenant, keyId }: Principal, idOrName: string): Promise<VolumeRow> {
    const row = await this.get(tenant, idOrName)
    const users = this.usersOf(row)
    if (users.length > 0)
      throw new SandboxError('conflict', `volume \`${row.name}\` is mounted in ${users.length} sandboxes`, {
        hint: `end ${users
          .slice(0, 3)
          .map(({ id }) => id)
          .join(', ')} first`,
      })
    // SECURITY: a sandbox that got the directory meanwhile could lead the removal out of it by symlinks.
    await this.leaving(
      row,
      async () => {
        await this.#parts.trail.append({ event: 'Volume', ...facts(row), action: 'remove', key_id: keyId })
        await this.#parts.store.write((tx) => removeVolume(tx, row.id))
        await this.dropDirectory(row)
      },
      isBeingRemoved,
    )
    return row
  }

  /** Removes the directory, if this server has one. */
  async dropDirectory(row: Pick<VolumeRow, 'id'>): Promise<void> {
    if (!existsSync(this.pathOf(row))) return
    const aside = join(this.#parts.dir, `${ASIDE}${randomBytes(6).toString('hex')}`)
    renameSync(this.pathOf(row), aside)
    await removeTree(aside)
  }

  /** An empty directory for a volume that comes here. */
  async newDirectory(row: Pick<VolumeRow, 'id'>): Promise<void> {
    // INVARIANT: what an earlier stay left is old, and never used again.
    await this.dropDirectory(row)
    mkdirSync(this.pathOf(row), { mode: 0o755 })
  }

  /**
   * Removes what an interrupted removal left, and directories of volumes that are on another node now. A directory without a record
   * stays: the record may be in another database.
   */
  async sweep(): Promise<void> {
    for (const name of readdirSync(this.#parts.dir)) {
      if (name.startsWith(ASIDE)) await removeTree(join(this.#parts.dir, name))
      const row = ID.test(name) ? await volumeById(this.#parts.store, name) : undefined
      if (row && !this.isHere(row)) await this.dropDirectory(row)
    }
  }

  /** Whether this server has the directory. */
  isHere({ instance }: Pick<VolumeRow, 'instance'>): boolean {
    return instance === null || instance === this.#parts.node
  }

  /** Bytes on disk; undefined if counting takes too long. */
  usedBytes(row: VolumeRow): Promise<number | undefined> {
    return diskUsage(this.pathOf(row))
  }

  /** The same with deleted files that sandboxes still hold, which take their space until they are closed. */
  async heldAndUsedBytes(row: VolumeRow): Promise<number | undefined> {
    let sum = await this.usedBytes(row)
    for (const { row: user, sandbox } of this.usersOf(row, 'writers'))
      for (const { target } of mountsOf(user).filter(({ name }) => name === row.id || name === row.name)) {
        const held = await sandbox?.heldBytes(target).catch(() => 0)
        sum = sum === undefined || (sandbox && held === undefined) ? undefined : sum + (held ?? 0)
      }
    return sum
  }

  /** Bytes that may still be written. A volume that cannot be counted has none. */
  async freeBytes(row: VolumeRow): Promise<number> {
    const used = await this.heldAndUsedBytes(row)
    return used === undefined ? 0 : Math.max(0, row.sizeMb * MB - used)
  }

  /** The same bytes, until they exceed what may still be written. */
  async within(row: VolumeRow, bytes: AsyncIterable<Uint8Array>): Promise<AsyncIterable<Uint8Array>> {
    if (row.readOnly) throw isReadOnly(row)
    let free = await this.freeBytes(row)
    return (async function* () {
      for await (const chunk of bytes) {
        free -= chunk.length
        if (free >= 0) yield chunk
        // PLATFORM: a client whose body is not read sees a broken connection instead of the answer.
        else if (free < -MOST_IGNORED_BYTES) break
      }
      if (free < 0) throw isFull(row)
    })()
  }

  /** The sandboxes that have this volume mounted. */
  usersOf({ id, name, tenant }: VolumeRow, only?: 'writers'): readonly LiveSandbox[] {
    return [...this.live()].filter(
      ({ row }) =>
        row.tenant === tenant &&
        mountsOf(row).some(
          (mount) =>
            (mount.name === id || mount.name === name) && (only === undefined || mount.mode !== 'ro'),
        ),
    )
  }

  /** The ids of the sandboxes of other nodes that have this volume mounted. */
  async usersElsewhere({ id, name, tenant }: VolumeRow): Promise<readonly string[]> {
    const rows = await liveWithVolumes(this.#parts.store, tenant)
    return rows
      .filter((row) => mountsOf(row).some((mount) => mount.name === id || mount.name === name))
      .map((row) => row.id)
  }

  /** The volumes that sandboxes write to now, each once. */
  async written(): Promise<readonly VolumeRow[]> {
    const asked = new Map<string, { readonly tenant: string; readonly name: string }>()
    for (const { row } of this.live())
      for (const { name, mode } of mountsOf(row))
        if (mode !== 'ro') asked.set(`${row.tenant}\0${name}`, { tenant: row.tenant, name })
    const found = new Map<string, VolumeRow>()
    for (const { tenant, name } of asked.values()) {
      const row = await findVolume(this.#parts.store, tenant, name)
      if (row) found.set(row.id, row)
    }
    return [...found.values()]
  }

  /** The host directories of a spec's volumes, in order. */
  async resolve(tenant: string, sandboxId: string, spec: Spec): Promise<readonly string[]> {
    const paths: string[] = []
    for (const mount of spec.volumes ?? []) {
      const row = await this.here(await this.get(tenant, mount.name))
      if (mount.mode !== 'ro') await this.#assertWritable(row)
      paths.push(await this.mount(row, sandboxId, mount))
    }
    return paths
  }

  /** The volume on this node; one whose node does not run is taken from it. */
  async here(row: VolumeRow): Promise<VolumeRow> {
    if (this.isHere(row)) return row
    if (!this.takeFromLost) throw isElsewhere(row)
    return this.takeFromLost(row)
  }

  /** Records that a sandbox gets a volume, and returns its directory. */
  async mount(
    row: VolumeRow,
    sandboxId: string,
    { target, mode = 'rw' }: Omit<VolumeMount, 'name'>,
  ): Promise<string> {
    await this.#assertUsable(row, mode)
    await this.record(row, { action: 'mount', target, mode, sandbox_id: sandboxId })
    return this.pathOf(row)
  }

  /** Writes what happens to a volume to the audit log. */
  record(row: VolumeRow, more: { readonly action: string; readonly [name: string]: Json }): Promise<void> {
    return this.#parts.trail.append({ event: 'Volume', ...facts(row), ...more })
  }

  /**
   * INVARIANT: a sandbox that mounts a volume is counted among its users before this is called, so the volume can neither move nor be
   * removed in between. Either may have happened since the caller read the row.
   */
  async #assertUsable(row: VolumeRow, mode: 'ro' | 'rw'): Promise<void> {
    const leaving = this.#leaving.get(row.id)
    if (leaving) throw leaving(row)
    const { node, store } = this.#parts
    const isShared = node !== undefined && row.instance !== null
    if (isShared && mode === 'rw' && !(await store.write((tx) => openForWriting(tx, row.id, node))))
      throw isElsewhere(row)
    const fresh = await volumeById(store, row.id)
    if (!fresh) throw isBeingRemoved(row)
    if (isShared && fresh.instance !== node) throw isElsewhere(row)
  }

  /** Counts something that this server opens itself; call the result when it is closed. */
  opened({ id }: Pick<VolumeRow, 'id'>, mode: 'ro' | 'rw'): () => void {
    const count = this.#opened.get(id) ?? { readers: 0, writers: 0 }
    this.#opened.set(id, count)
    const kind = mode === 'rw' ? 'writers' : 'readers'
    count[kind]++
    return () => {
      count[kind]--
      if (count.readers + count.writers === 0) this.#opened.delete(id)
    }
  }

  /** Whether anything here may write to the volume. */
  isWritten(row: VolumeRow): boolean {
    return (this.#opened.get(row.id)?.writers ?? 0) > 0 || this.usersOf(row, 'writers').length > 0
  }

  /** Lets a volume leave: nothing opens it while the work goes on. Throws if something has it open. */
  async leaving<T>(
    row: VolumeRow,
    work: () => Promise<T>,
    refusal: (row: VolumeRow) => SandboxError = isElsewhere,
  ): Promise<T> {
    const other = this.#leaving.get(row.id)
    if (other) throw other(row)
    this.#leaving.set(row.id, refusal)
    try {
      const users = this.usersOf(row).map(({ id }) => id)
      if (users.length > 0)
        throw new SandboxError('conflict', `it is mounted in ${users.slice(0, 3).join(', ')}`)
      if (this.#opened.has(row.id)) throw new SandboxError('conflict', 'its files are being read or written')
      return await work()
    } finally {
      this.#leaving.delete(row.id)
    }
  }

  async #assertWritable(row: VolumeRow): Promise<void> {
    if (row.readOnly) throw isReadOnly(row)
    if ((await this.freeBytes(row)) === 0) throw isFull(row)
  }

  /** INVARIANT: never part of an answer. */
  pathOf({ id }: Pick<VolumeRow, 'id'>): string {
    if (!ID.test(id)) throw new SandboxError('internal', 'not the id of a volume')
    return join(this.#parts.dir, id)
  }
}

const isReadOnly = ({ name }: VolumeRow): SandboxError =>
  new SandboxError('wrong-state', `volume \`${name}\` is a read-only snapshot`, {
    hint: 'mount it with mode `ro`, or make a writable copy of it',
  })

const isFull = ({ name, sizeMb }: VolumeRow): SandboxError =>
  new SandboxError('too-large', `volume \`${name}\` is full: ${sizeMb} MB`, {
    hint: 'mount it with mode `ro`, or remove files from it first',
  })

const isElsewhere = ({ name }: VolumeRow): SandboxError =>
  new SandboxError('unreachable', `volume \`${name}\` is on another node, or on its way there`, {
    hint: 'repeat the request',
    retryAfterSecs: 1,
  })

const isBeingRemoved = ({ name }: VolumeRow): SandboxError =>
  new SandboxError('conflict', `volume \`${name}\` is being removed`, {
    hint: 'list volumes with `ringfence volume ls`',
  })

const facts = ({ id, name, tenant }: VolumeRow) => ({ volume_id: id, name, tenant })

type VolumeMount = NonNullable<Spec['volumes']>[number]

const mountsOf = ({ spec }: Pick<LiveSandbox['row'], 'spec'>): readonly VolumeMount[] =>
  spec.includes('"volumes"') ? ((JSON.parse(spec) as Spec).volumes ?? []) : []

/** SECURITY: a name that is a possible id could stand for another volume. */
function checkName(name: string): string {
  if (NAME.test(name) && !ID.test(name)) return name
  throw new SandboxError('invalid-input', `\`${name.slice(0, 64)}\` is not a name for a volume`, {
    hint: 'use letters, digits, `-` and `_`; not `vol_` with a number',
  })
}
