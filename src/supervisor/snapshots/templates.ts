import { createHash, randomBytes } from 'node:crypto'
import { createReadStream, existsSync, mkdirSync, utimesSync } from 'node:fs'
import { type FileHandle, open, opendir, rename, rm, stat } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { hashFile } from '../../host/files/hash-file.ts'
import { SandboxError } from '../../model/errors.ts'
import { releaseChunks, useChunks } from '../../store/chunks.ts'
import {
  hasSnapshot,
  listSnapshots,
  putSnapshot,
  removeSnapshot,
  type SnapshotQuery,
  type SnapshotRow,
  uselessMoves,
} from '../../store/snapshots.ts'
import type { Store } from '../../store/sql.ts'
import type { ArchiveStore } from '../archives/archive-store.ts'
import { type DiskQuota, DiskQuotas, type DiskWrite } from '../disk-quotas.ts'
import type { OpenSandbox } from '../open-sandbox.ts'

/** What a sandbox gets from a template, beside its files. */
export type TemplateData = {
  readonly env?: Readonly<Record<string, string>>
  readonly workdir?: string
  readonly startCommand?: string
  readonly readyCommand?: string
  readonly cpus?: number
  readonly memoryMb?: number
  readonly tags?: readonly string[]
  /** The user of commands that name none. */
  readonly user?: string
  /** The digest of the image under the root; absent: the host's programs. */
  readonly image?: string
  /** Whether there is a disk: the whole root file system of a sandbox that had its own. */
  readonly disk?: boolean
  /** Paths that the sandbox had to itself, for one that is made of the disk. */
  readonly own?: readonly string[]
  /** How many directories the archive contains. */
  readonly places: number
  /** Their paths; absent in old records, where the caller knows them. */
  readonly paths?: readonly string[]
  /** In a cluster: the node that has the archives, and what they are. */
  readonly node?: string
  /** Other nodes that keep a copy. */
  readonly copies?: readonly string[]
  readonly archives?: readonly Archive[]
}

/** One file of a template. Its name and its content never change. */
export type Archive = {
  readonly name: string
  readonly sha256: string
  readonly bytes: number
  /** What a disk takes where it was written: most of it is holes. */
  readonly stored?: number
  /** The hashes of its chunks, if it is in the archive store. */
  readonly chunks?: readonly string[]
}

/** Where the archives of other nodes come from. */
export type SharedArchives = {
  /** This node. */
  readonly node: string
  /** The bytes of an archive that one of these nodes has. */
  readonly fetch: (nodes: readonly string[], archive: Archive) => Promise<AsyncIterable<Uint8Array>>
  /** The store that all nodes share; absent: archives are only on nodes. */
  readonly store?: ArchiveStore | undefined
  /** Lets another node keep a copy; returns the nodes that have one. */
  readonly copy: (template: Pick<Template, 'id' | 'tenant'>) => Promise<readonly string[]>
}

type TemplatesOptions = {
  /** What the archives of one tenant may take. */
  readonly archiveBytes?: number
  readonly shared?: SharedArchives | undefined
  /** Throws if the disk of the server is almost full. */
  readonly assertFreeSpace?: () => void
}

/** A template or snapshot with its parsed data. */
export type Template = Omit<SnapshotRow, 'data'> & { readonly data: TemplateData }

const toTemplate = (row: SnapshotRow): Template => ({ ...row, data: JSON.parse(row.data) as TemplateData })

/**
 * Templates and snapshots: a record, and the private directories as tar archives.
 * SECURITY: archives are packed and unpacked inside the sandbox; the host never walks a tree that a guest wrote.
 */
export class Templates {
  readonly #store: Store
  readonly #dir: string
  readonly #quotas: DiskQuotas
  readonly #shared: SharedArchives | undefined
  /** Archives that are on their way here. */
  readonly #bringing = new Map<string, Promise<void>>()
  readonly #archiveBytes: number

  constructor(
    store: Store,
    dir: string,
    { archiveBytes = TENANT_ARCHIVE_BYTES, shared, assertFreeSpace }: TemplatesOptions = {},
  ) {
    this.#store = store
    this.#dir = dir
    this.#archiveBytes = archiveBytes
    this.#shared = shared
    this.#quotas = new DiskQuotas(assertFreeSpace)
    mkdirSync(dir, { recursive: true, mode: 0o700 })
  }

  async list(query: SnapshotQuery): Promise<readonly Template[]> {
    return (await listSnapshots(this.#store, query)).map(toTemplate)
  }

  async find(tenant: string, idOrName: string): Promise<Template | undefined> {
    return (await this.list({ tenant, idOrName, limit: 1 }))[0]
  }

  /** Archives the current files of the sandbox, then writes the record. `most`: its size is limited by this and not by the tenant's quota. */
  async keep(
    live: OpenSandbox,
    directories: readonly string[],
    record: NewTemplate,
    most?: number,
  ): Promise<Template> {
    const write = await this.#quotas.begin(
      most === undefined ? this.#archiveQuota(record) : volumeQuota(record, most),
    )
    try {
      return await this.#keepWithin(write, live, directories, record, most !== undefined)
    } finally {
      await write.end()
    }
  }

  /** INVARIANT: the archive of a volume replaces its directory, so nothing may be missing from a `whole` one. */
  async #keepWithin(
    write: DiskWrite,
    live: OpenSandbox,
    directories: readonly string[],
    record: NewTemplate,
    whole: boolean,
  ): Promise<Template> {
    const disk = live.plan.root !== undefined
    // SECURITY: a disk counts with what it takes now before it is copied, so that parallel snapshots share one quota.
    const reserved = live.plan.root ? bytesOf(await stat(live.plan.root.disk.real).catch(() => undefined)) : 0
    write.take(reserved)
    // A disk holds everything but what is in memory.
    const packed = disk ? [TEMPORARY] : directories
    try {
      for (const [index, directory] of packed.entries())
        await written(this.#archive(record.id, index), counted(live.files.pack(directory, { whole }), write))
      if (disk) await this.#keepDisk(live, record.id, write, reserved)
    } catch (error) {
      // An archive that exceeded the limit has no record, so it must be removed here.
      if (!(await this.find(record.tenant, record.id))) await this.#removeArchives(record.id, packed.length)
      throw error
    }
    const own = disk ? { disk, own: live.plan.own } : {}
    const shared = await this.#described(record, packed.length, disk)
    const data = { ...record.data, places: packed.length, paths: packed, ...own, ...shared }
    const kept = { ...record, backend: live.backend, data }
    await this.save(kept)
    return kept
  }

  /** What other nodes need to get the archives, and to know that they got them whole. */
  async #described(
    { id, tenant }: Pick<Template, 'id' | 'tenant'>,
    places: number,
    disk: boolean,
  ): Promise<Pick<TemplateData, 'node' | 'archives'>> {
    const shared = this.#shared
    if (!shared) return {}
    const files = Array.from({ length: places }, (_, index) => this.#archive(id, index))
    const archives = await Promise.all(
      [...files, ...(disk ? [this.#disk(id)] : [])].map(async (path) => {
        const chunks = await shared.store?.upload(tenant, path)
        const stored = path.endsWith(DISK) ? { stored: bytesOf(await stat(path)) } : {}
        return { ...(await archiveOf(path)), ...stored, ...(chunks && { chunks }) }
      }),
    )
    return { node: shared.node, archives }
  }

  /** Brings the archives of a template here that another node has; complete and unchanged, or not at all. */
  async bring({ tenant, data }: Pick<Template, 'tenant' | 'data'>): Promise<void> {
    const { node, copies = [], archives = [] } = data
    if (!this.#shared || node === undefined) return
    const others = [node, ...copies].filter((one) => one !== this.#shared?.node)
    for (const archive of archives) {
      if (existsSync(join(this.#dir, archive.name))) continue
      const under = this.#bringing.get(archive.name) ?? this.#bringOne(tenant, others, archive)
      this.#bringing.set(archive.name, under)
      await under.finally(() => this.#bringing.delete(archive.name))
    }
  }

  async #bringOne(tenant: string, nodes: readonly string[], archive: Archive): Promise<void> {
    const { store, fetch } = this.#shared as SharedArchives
    const path = join(this.#dir, archive.name)
    if (store && archive.chunks) {
      const bytes = store.download(tenant, archive.chunks)
      const missing = await written(path, unchanged(bytes, archive)).catch((error: unknown) => ({ error }))
      if (!missing) return
      // A node that has it is as good.
      if (nodes.length === 0) throw missing.error
    }
    await written(path, unchanged(await fetch(nodes, archive), archive))
  }

  /** Makes the archives outlive this node, if there is another one. */
  async secure(template: Template): Promise<Template> {
    if (template.data.archives?.every(({ chunks }) => chunks)) return template
    const copies = (await this.#shared?.copy(template)) ?? []
    if (copies.length === 0) return template
    const secured = { ...template, data: { ...template.data, copies } }
    await this.save(secured)
    return secured
  }

  /** Removes the files of a template that can be fetched again. */
  async dropLocal({ data }: Pick<Template, 'data'>): Promise<void> {
    const isElsewhere = data.node !== undefined && data.node !== this.#shared?.node
    for (const { name, chunks } of data.archives ?? [])
      if (isElsewhere || (chunks && this.#shared?.store)) await rm(join(this.#dir, name), { force: true })
  }

  /** The file of an archive that this server has, for another node. */
  archivePath(name: string): string | undefined {
    const path = join(this.#dir, name)
    return ARCHIVE.test(name) && existsSync(path) ? path : undefined
  }

  /** Removes files with which sandboxes moved and that nothing needs any more. Returns how many. */
  async sweepMoves(before: number): Promise<number> {
    const rows = await uselessMoves(this.#store, before)
    for (const row of rows) await this.remove(toTemplate(row))
    return rows.length
  }

  /** Removes archives whose record is gone: another node removed it. Returns how many. */
  async sweep(before: number): Promise<number> {
    let removed = 0
    for await (const { name } of await opendir(this.#dir)) {
      const id = ARCHIVE.exec(name)?.[1]
      if (id === undefined || !(await this.#isStale(name, before))) continue
      if (await hasSnapshot(this.#store, id)) continue
      await rm(join(this.#dir, name), { force: true })
      removed++
    }
    return removed
  }

  /** The disk may have grown since its room was reserved. */
  async #keepDisk(live: OpenSandbox, id: string, write: DiskWrite, reserved: number): Promise<void> {
    const draft = `${this.#disk(id)}.${randomBytes(6).toString('hex')}.tmp`
    try {
      await live.copyDisk(draft)
      write.take(bytesOf(await stat(draft)) - reserved)
      await rename(draft, this.#disk(id))
    } finally {
      await rm(draft, { force: true })
    }
  }

  /** The disk that a sandbox of this template starts from; undefined if it has none. */
  diskOf({ id, data }: Template): string | undefined {
    if (!data.disk) return undefined
    if (existsSync(this.#disk(id))) return this.#disk(id)
    throw new SandboxError('launch-failed', `the disk of template ${id} is missing`)
  }

  async save(template: Template): Promise<void> {
    const { id, tenant, data } = template
    const { store } = this.#shared ?? {}
    const hashes = store ? (data.archives ?? []).flatMap(({ chunks = [] }) => chunks) : []
    const names = hashes.map((hash) => store?.nameOf(tenant, hash) as string)
    // INVARIANT: a record is there only when everything that it needs is stored, and keeps it there.
    const isComplete = await this.#store.write(async (tx) => {
      if (!(await useChunks(tx, id, names))) return false
      await putSnapshot(tx, { ...template, data: JSON.stringify(data) })
      return true
    })
    if (!isComplete)
      throw new SandboxError('conflict', 'a part of the archive was removed', { hint: 'try again' })
  }

  /** Restores the files of a template into a new sandbox. */
  async restore(
    live: OpenSandbox,
    directories: readonly string[],
    { id, tenant, data }: Template,
  ): Promise<void> {
    await this.bring({ tenant, data })
    for (const [index, directory] of (data.paths ?? directories.slice(0, data.places)).entries()) {
      const file = this.#archive(id, index)
      // SECURITY: only into the sandbox's private directories, never into a mount of the host.
      if (directory !== TEMPORARY && !live.plan.own.includes(directory))
        throw new SandboxError(
          'unsupported',
          `template ${id} contains \`${directory}\`, which this sandbox does not have`,
        )
      if (!existsSync(file))
        throw new SandboxError('launch-failed', `the archive of template ${id} is missing`)
      await live.files.unpack(directory, createReadStream(file))
    }
  }

  async remove({ id, data }: Template): Promise<void> {
    await this.#store.write(async (tx) => {
      await removeSnapshot(tx, id)
      await releaseChunks(tx, id)
    })
    await this.#removeArchives(id, data.places)
  }

  async #removeArchives(id: string, count: number): Promise<void> {
    for (let index = 0; index < count; index++) await rm(this.#archive(id, index), { force: true })
    await rm(this.#disk(id), { force: true })
  }

  /** A file that a build uploads, identified by the hash that its client computed. */
  upload(tenant: string, hash: string): { readonly present: boolean; readonly path: string } {
    if (!/^[0-9a-f]{16,128}$/.test(hash) || !/^[\w.-]+$/.test(tenant))
      throw new SandboxError('invalid-input', 'not a file hash')
    const path = join(this.#dir, `upload-${tenant}-${hash}`)
    return { present: markUsed(path), path }
  }

  async takeUpload(tenant: string, hash: string, data: AsyncIterable<Uint8Array>): Promise<void> {
    const { path } = this.upload(tenant, hash)
    const write = await this.#quotas.begin({
      name: `upload ${tenant}`,
      stored: () => this.#uploadsOf(tenant),
      replaces: basename(path),
      bytes: TENANT_UPLOAD_BYTES,
      files: TENANT_UPLOADS,
      each: UPLOAD_BYTES,
      refuse: noUploadRoom,
    })
    try {
      await written(path, counted(data, write))
    } finally {
      await write.end()
    }
  }

  #archiveQuota({ tenant, id }: Pick<Template, 'tenant' | 'id'>): DiskQuota {
    return {
      name: `archive ${tenant}`,
      stored: () => this.#archivesOf(tenant),
      replaces: id,
      bytes: this.#archiveBytes,
      files: TENANT_ARCHIVES,
      refuse: noArchiveRoom,
    }
  }

  /** The disk space of each of a tenant's templates and snapshots. */
  async #archivesOf(tenant: string): Promise<ReadonlyMap<string, number>> {
    const own = await this.list({ tenant, except: 'volume', limit: TENANT_ARCHIVES })
    const bytes = new Map<string, number>()
    for (const template of own) bytes.set(template.id, await this.#bytesOf(template))
    return bytes
  }

  /** SECURITY: in a cluster the archives may be on another node, and count all the same; a disk counts with what it takes there. */
  async #bytesOf({ id, data }: Template): Promise<number> {
    let sum = 0
    if (data.archives === undefined)
      for (let index = 0; index < data.places; index++)
        sum += (await stat(this.#archive(id, index)).catch(() => undefined))?.size ?? 0
    for (const { name, bytes } of data.archives ?? []) if (!name.endsWith(DISK)) sum += bytes
    const here = data.disk && (await stat(this.#disk(id)).catch(() => undefined))
    const there = data.archives?.find(({ name }) => name.endsWith(DISK))?.stored ?? 0
    return sum + (here ? bytesOf(here) : there)
  }

  /** The disk space of each of a tenant's build files. */
  async #uploadsOf(tenant: string): Promise<ReadonlyMap<string, number>> {
    const bytes = new Map<string, number>()
    for await (const { name } of await opendir(this.#dir))
      if (uploaderOf(name) === tenant)
        bytes.set(name, (await stat(join(this.#dir, name)).catch(() => undefined))?.size ?? 0)
    return bytes
  }

  /**
   * Build files that have not been used since, and partial files that a crash left.
   * INVARIANT: never an archive, because its record may be in another database than the current one.
   */
  async staleFiles(before: number, limit: number): Promise<readonly string[]> {
    const names: string[] = []
    for await (const { name } of await opendir(this.#dir)) {
      if (names.length === limit) break
      if (/^upload-|\.tmp$/.test(name) && (await this.#isStale(name, before))) names.push(name)
    }
    return names
  }

  /** Removes a file unless it has been used meanwhile. */
  async removeFile(name: string, before: number): Promise<void> {
    if (await this.#isStale(name, before)) await rm(join(this.#dir, name), { force: true })
  }

  async #isStale(name: string, before: number): Promise<boolean> {
    const found = await stat(join(this.#dir, name)).catch(() => undefined)
    return found !== undefined && found.mtimeMs < before
  }

  #disk(id: string): string {
    return join(this.#dir, `${id}${DISK}`)
  }

  #archive(id: string, index: number): string {
    return join(this.#dir, `${id}-${index}.tar`)
  }
}

const DISK = '.disk'

/** The file of a template: one of its directories, or its disk. */
const ARCHIVE = /^([a-z]+_?[0-9a-z]+)(?:-\d+\.tar|\.disk)$/

const archiveOf = async (path: string): Promise<Archive> => ({
  name: basename(path),
  ...(await hashFile(path)),
})

/** Passes bytes on, and fails at the end if they are not those of the archive. */
async function* unchanged(data: AsyncIterable<Uint8Array>, { name, sha256, bytes }: Archive) {
  const hash = createHash('sha256')
  let size = 0
  for await (const chunk of data) {
    hash.update(chunk)
    size += chunk.length
    if (size > bytes) break
    yield chunk
  }
  if (size !== bytes || hash.digest('hex') !== sha256)
    throw new SandboxError('launch-failed', `the archive \`${name}\` of another node is not complete`, {
      hint: 'try again',
    })
}
/** A template before its files are archived. */
type NewTemplate = Omit<Template, 'backend' | 'data'> & { readonly data: Omit<TemplateData, 'places'> }

/** What a file takes on the disk; a disk of a sandbox is mostly empty. */
const bytesOf = (found: { readonly blocks: number } | undefined): number => (found?.blocks ?? 0) * 512

/** Private to every sandbox, in addition to the private directories that a spec may name. */
export const TEMPORARY = '/tmp'

const TENANT_UPLOADS = 1000
const UPLOAD_BYTES = 1024 ** 3
const TENANT_UPLOAD_BYTES = 4 * 1024 ** 3

/** The tenant of an upload, from its file name; a hash contains no hyphen. */
const uploaderOf = (name: string): string | undefined => /^upload-(.+)-[0-9a-f]+$/.exec(name)?.[1]

const TENANT_ARCHIVES = 1000
const TENANT_ARCHIVE_BYTES = 40 * 1024 ** 3

const noArchiveRoom = (): SandboxError =>
  new SandboxError('too-large', 'the snapshots and templates of this tenant exceed its quota', {
    hint: `the quota is ${TENANT_ARCHIVES} archives and 40 GiB in total; remove some first`,
  })

const noVolumeRoom = (): SandboxError =>
  new SandboxError('too-large', 'the archive of the volume would be far larger than the volume', {
    hint: 'files with large holes are archived with them; remove such files',
  })

/** The archive of a volume counts for nothing but itself. */
const volumeQuota = ({ id }: Pick<Template, 'id'>, bytes: number): DiskQuota => ({
  name: `volume ${id}`,
  stored: async () => new Map(),
  bytes,
  refuse: noVolumeRoom,
})

const noUploadRoom = (): SandboxError =>
  new SandboxError('too-large', 'the build files of this tenant exceed its quota', {
    hint: `the limit is ${TENANT_UPLOADS} files, 1 GiB per file and 4 GiB in total; files that no build uses are removed after a while`,
  })

/** Whether the file exists; marks it as used now. */
function markUsed(path: string): boolean {
  try {
    const now = new Date()
    utimesSync(path, now, now)
    return true
  } catch {
    return false
  }
}

/** Counts bytes before they are written. */
async function* counted(data: AsyncIterable<Uint8Array>, write: DiskWrite): AsyncGenerator<Uint8Array, void> {
  for await (const chunk of data) {
    write.take(chunk.length)
    yield chunk
  }
}

const ZERO = Buffer.alloc(64 * 1024)

/** Whether bytes are zero; short ones are written anyway. */
function isZero(bytes: Uint8Array): boolean {
  if (bytes.length < ZERO.length) return false
  for (let at = 0; at < bytes.length; at += ZERO.length) {
    const some = bytes.subarray(at, at + ZERO.length)
    if (Buffer.compare(some, ZERO.subarray(0, some.length)) !== 0) return false
  }
  return true
}

async function writeAll(file: FileHandle, bytes: Uint8Array, position: number): Promise<void> {
  for (let at = 0; at < bytes.length; )
    at += (await file.write(bytes, at, bytes.length - at, position + at)).bytesWritten
}

/** Writes a file atomically. */
async function written(path: string, data: AsyncIterable<Uint8Array>): Promise<void> {
  // A unique name: two clients that upload the same file must not write into one.
  const draft = `${path}.${randomBytes(6).toString('hex')}.tmp`
  const file = await open(draft, 'wx', 0o600)
  try {
    let at = 0
    for await (const chunk of data) {
      // Disks are mostly empty: what is zero stays a hole.
      if (!isZero(chunk)) await writeAll(file, chunk, at)
      at += chunk.length
    }
    await file.truncate(at)
    await file.sync()
    await file.close()
    await rename(draft, path)
  } catch (error) {
    await file.close().catch(() => {})
    await rm(draft, { force: true })
    throw error
  }
}
