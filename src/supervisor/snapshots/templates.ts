import { randomBytes } from 'node:crypto'
import { createReadStream, existsSync, mkdirSync, utimesSync } from 'node:fs'
import { open, opendir, rename, rm, stat } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { SandboxError } from '../../model/errors.ts'
import {
  listSnapshots,
  putSnapshot,
  removeSnapshot,
  type SnapshotQuery,
  type SnapshotRow,
} from '../../store/snapshots.ts'
import type { Store } from '../../store/sql.ts'
import type { OpenSandbox } from '../open-sandbox.ts'

/** What a sandbox that starts from it gets, beside its files. */
export type TemplateData = {
  readonly env?: Readonly<Record<string, string>>
  readonly workdir?: string
  readonly startCommand?: string
  readonly readyCommand?: string
  readonly cpus?: number
  readonly memoryMb?: number
  readonly tags?: readonly string[]
  /** How many directories are in the archive. */
  readonly places: number
  /** Which ones; in old records whoever restores it knows. */
  readonly paths?: readonly string[]
}

export type Template = Omit<SnapshotRow, 'data'> & { readonly data: TemplateData }

const toTemplate = (row: SnapshotRow): Template => ({ ...row, data: JSON.parse(row.data) as TemplateData })

/**
 * Templates and snapshots: a record, and the private directories as tar archives.
 * SECURITY: archives are packed and unpacked behind the wall; the host never walks a tree that a guest wrote.
 */
export class Templates {
  readonly #store: Store
  readonly #dir: string
  /** Bytes on their way to the disk, by tenant. */
  readonly #writing = new Map<string, number>()

  constructor(store: Store, dir: string) {
    this.#store = store
    this.#dir = dir
    mkdirSync(dir, { recursive: true, mode: 0o700 })
  }

  async list(query: SnapshotQuery): Promise<readonly Template[]> {
    return (await listSnapshots(this.#store, query)).map(toTemplate)
  }

  async find(tenant: string, idOrName: string): Promise<Template | undefined> {
    return (await this.list({ tenant, idOrName, limit: 1 }))[0]
  }

  /** Keeps what the sandbox holds now, and then the record of it. */
  async keep(
    live: OpenSandbox,
    places: readonly string[],
    record: Omit<Template, 'backend' | 'data'> & { readonly data: Omit<TemplateData, 'places'> },
  ): Promise<Template> {
    const stored = await this.#archivedBy(record.tenant, record.id)
    const room = {
      tenant: `archive ${record.tenant}`,
      stored,
      all: TENANT_ARCHIVE_BYTES,
      refuse: noArchiveRoom,
    }
    try {
      for (const [index, place] of places.entries())
        await this.#writeWithin(room, this.#archive(record.id, index), live.files.pack(place))
    } catch (error) {
      // What was written before it did not fit has no record, and nobody would ever remove it.
      if (!(await this.find(record.tenant, record.id))) await this.#removeArchives(record.id, places.length)
      throw error
    }
    const kept = {
      ...record,
      backend: live.backend,
      data: { ...record.data, places: places.length, paths: places },
    }
    await this.save(kept)
    return kept
  }

  async save(template: Template): Promise<void> {
    await this.#store.write((tx) => putSnapshot(tx, { ...template, data: JSON.stringify(template.data) }))
  }

  /** Puts the files of a template into a sandbox that is new. */
  async restore(live: OpenSandbox, places: readonly string[], { id, data }: Template): Promise<void> {
    for (const [index, place] of (data.paths ?? places.slice(0, data.places)).entries()) {
      const file = this.#archive(id, index)
      // SECURITY: into what is the sandbox's own, never into a mount of the host's.
      if (place !== '/tmp' && !live.plan.own.includes(place))
        throw new SandboxError('unsupported', `template ${id} holds \`${place}\`, which this sandbox lacks`)
      if (!existsSync(file))
        throw new SandboxError('launch-failed', `the archive of template ${id} is missing`)
      await live.files.unpack(place, createReadStream(file))
    }
  }

  async remove({ id, data }: Template): Promise<void> {
    await this.#store.write((tx) => removeSnapshot(tx, id))
    await this.#removeArchives(id, data.places)
  }

  async #removeArchives(id: string, count: number): Promise<void> {
    for (let index = 0; index < count; index++) await rm(this.#archive(id, index), { force: true })
  }

  /** A file that a build brings along, by the hash that its client gave it. */
  upload(tenant: string, hash: string): { readonly present: boolean; readonly path: string } {
    if (!/^[0-9a-f]{16,128}$/.test(hash) || !/^[\w.-]+$/.test(tenant))
      throw new SandboxError('invalid-input', 'not the hash of a file')
    const path = join(this.#dir, `upload-${tenant}-${hash}`)
    return { present: markUsed(path), path }
  }

  async takeUpload(tenant: string, hash: string, data: AsyncIterable<Uint8Array>): Promise<void> {
    const { path } = this.upload(tenant, hash)
    const stored = await this.#uploadedBy(tenant, basename(path))
    const room = {
      tenant: `upload ${tenant}`,
      stored,
      all: TENANT_UPLOAD_BYTES,
      each: UPLOAD_BYTES,
      refuse: noUploadRoom,
    }
    await this.#writeWithin(room, path, data)
  }

  /** SECURITY: a file counts for its tenant from the first byte on, so that many at once get no more room than one. */
  async #writeWithin(room: TenantDiskUse, path: string, data: AsyncIterable<Uint8Array>): Promise<void> {
    const { tenant, stored, all, each = all, refuse } = room
    let size = 0
    const count = (bytes: number): number => {
      size += bytes
      const sum = (this.#writing.get(tenant) ?? 0) + bytes
      if (sum > 0) this.#writing.set(tenant, sum)
      else this.#writing.delete(tenant)
      return sum
    }
    const within = async function* (): AsyncGenerator<Uint8Array, void> {
      for await (const chunk of data) {
        if (stored + count(chunk.length) > all || size > each) throw refuse()
        yield chunk
      }
    }
    try {
      await written(path, within())
      room.stored += size
    } finally {
      count(-size)
    }
  }

  /** What a tenant's templates and snapshots take on the disk, but for one that is about to be replaced. */
  async #archivedBy(tenant: string, except: string): Promise<number> {
    const own = (await this.list({ tenant, limit: TENANT_ARCHIVES })).filter(({ id }) => id !== except)
    if (own.length >= TENANT_ARCHIVES) throw noArchiveRoom()
    let sum = 0
    for (const { id, data } of own)
      for (let index = 0; index < data.places; index++)
        sum += (await stat(this.#archive(id, index)).catch(() => undefined))?.size ?? 0
    return sum
  }

  /** What the files of a tenant's builds take on the disk, but for one that is about to be replaced. */
  async #uploadedBy(tenant: string, except: string): Promise<number> {
    let sum = 0
    for await (const { name } of await opendir(this.#dir))
      if (uploaderOf(name) === tenant && name !== except)
        sum += (await stat(join(this.#dir, name)).catch(() => undefined))?.size ?? 0
    return sum
  }

  /**
   * Files of builds that nobody asked for since, and halves that a crash left.
   * INVARIANT: never an archive: its record may lie in another database than the one in use now.
   */
  async staleFiles(before: number, limit: number): Promise<readonly string[]> {
    const names: string[] = []
    for await (const { name } of await opendir(this.#dir)) {
      if (names.length === limit) break
      if (/^upload-|\.tmp$/.test(name) && (await this.#isStale(name, before))) names.push(name)
    }
    return names
  }

  /** Unless somebody used it meanwhile. */
  async removeFile(name: string, before: number): Promise<void> {
    if (await this.#isStale(name, before)) await rm(join(this.#dir, name), { force: true })
  }

  async #isStale(name: string, before: number): Promise<boolean> {
    const found = await stat(join(this.#dir, name)).catch(() => undefined)
    return found !== undefined && found.mtimeMs < before
  }

  #archive(id: string, index: number): string {
    return join(this.#dir, `${id}-${index}.tar`)
  }
}

const UPLOAD_BYTES = 1024 ** 3
const TENANT_UPLOAD_BYTES = 4 * 1024 ** 3

/** The tenant of an upload by its file's name; a hash holds no hyphen. */
const uploaderOf = (name: string): string | undefined => /^upload-(.+)-[0-9a-f]+$/.exec(name)?.[1]

/** How much a tenant may keep, and how much of it is there already. */
type TenantDiskUse = {
  readonly tenant: string
  stored: number
  readonly all: number
  readonly each?: number
  readonly refuse: () => SandboxError
}

const TENANT_ARCHIVES = 1000
const TENANT_ARCHIVE_BYTES = 40 * 1024 ** 3

const noArchiveRoom = (): SandboxError =>
  new SandboxError('too-large', 'the snapshots and templates of this tenant take too much room', {
    hint: `a tenant may keep ${TENANT_ARCHIVES} of them and 40 GiB in all; remove some first`,
  })

const noUploadRoom = (): SandboxError =>
  new SandboxError('too-large', 'the files of this tenant’s builds are too large', {
    hint: 'one file may have 1 GiB and all of them 4 GiB; files that no build used for a while are removed',
  })

/** Whether it is there; its age counts from its last use. */
function markUsed(path: string): boolean {
  try {
    const now = new Date()
    utimesSync(path, now, now)
    return true
  } catch {
    return false
  }
}

/** A whole file on the disk, or none. */
async function written(path: string, data: AsyncIterable<Uint8Array>): Promise<void> {
  // A name of its own: two who send the same file at once must not write into one.
  const draft = `${path}.${randomBytes(6).toString('hex')}.tmp`
  const file = await open(draft, 'wx', 0o600)
  try {
    for await (const chunk of data) await file.writeFile(chunk)
    await file.sync()
    await file.close()
    await rename(draft, path)
  } catch (error) {
    await file.close().catch(() => {})
    await rm(draft, { force: true })
    throw error
  }
}
