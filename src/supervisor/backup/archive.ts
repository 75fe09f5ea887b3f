import { createHash } from 'node:crypto'
import {
  closeSync,
  createReadStream,
  createWriteStream,
  fsyncSync,
  linkSync,
  mkdirSync,
  openSync,
  readdirSync,
  rmSync,
  statSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createGunzip, createGzip } from 'node:zlib'
import { syncDir } from '../../audit/files.ts'
import { TarReader } from '../../backends/tar/reader.ts'
import { header, padding } from '../../backends/tar/writer.ts'
import { SandboxError } from '../../model/errors.ts'
import { type Infer, list, number, object, text } from '../../model/shape.ts'

/** One file that holds a directory: a gzipped tar whose first entry lists every file with its size and SHA-256. */

const manifestShape = object({
  format: number({ integer: true, min: 1, max: 1 }),
  version: text({ max: 64 }),
  created_at: text({ max: 64 }),
  records: number({ integer: true, min: 0 }),
  files: list(
    object({
      path: text({ max: 1024 }),
      size: number({ integer: true, min: 0 }),
      sha256: text({ max: 64 }),
    }),
    1_000_000,
  ),
})
/** What an archive says about itself. */
export type Manifest = Infer<typeof manifestShape>

const MANIFEST = 'manifest.json'
const MANIFEST_BYTES = 256 * 1024 * 1024

/** Writes the files of a directory as a new archive with mode 0600. An existing file is never overwritten. */
export async function writeArchive(
  dir: string,
  file: string,
  about: Omit<Manifest, 'files' | 'format'>,
): Promise<Manifest> {
  const files = await Promise.all(
    pathsIn(dir)
      .filter((path) => !isPassing(dir, path))
      .map((path) => described(dir, path)),
  )
  const manifest: Manifest = { format: 1, ...about, files }
  const partial = `${file}.partial-${process.pid}`
  try {
    const out = createWriteStream(partial, { flags: 'wx', mode: 0o600 })
    await pipeline(Readable.from(entries(dir, manifest)), createGzip(), out)
    sync(partial)
    // Unlike a rename, a link never replaces a file.
    linkSync(partial, file)
    syncDir(dirname(file))
  } catch (error) {
    throw (error as NodeJS.ErrnoException).code === 'EEXIST' ? exists(file) : error
  } finally {
    rmSync(partial, { force: true })
  }
  return manifest
}

/** Files of a closed database that vanish when libsql's objects are collected: without content that the database needs. */
const isPassing = (dir: string, path: string): boolean =>
  path.endsWith('.db-shm') ||
  (path.endsWith('.db-wal') && (statSync(join(dir, path), { throwIfNoEntry: false })?.size ?? 0) === 0)

async function* entries(dir: string, manifest: Manifest): AsyncGenerator<Uint8Array> {
  const bytes = Buffer.from(`${JSON.stringify(manifest)}\n`)
  yield* header({ name: MANIFEST, type: '0', mode: 0o600, size: bytes.length })
  yield bytes
  yield padding(bytes.length)
  for (const { path, size } of manifest.files) {
    yield* header({ name: path, type: '0', mode: 0o600, size })
    yield* createReadStream(join(dir, path))
    yield padding(size)
  }
  yield Buffer.alloc(1024)
}

/** Unpacks an archive into a new directory; throws unless every file is exactly as its manifest says. */
export async function readArchive(file: string, dir: string): Promise<Manifest> {
  const source = createReadStream(file)
  const unzipped = source.pipe(createGunzip())
  source.on('error', (error) => unzipped.destroy(error))
  try {
    const tar = new TarReader(unzipped)
    const manifest = await manifestOf(tar)
    for (const expected of manifest.files) await unpack(tar, dir, expected)
    if (await tar.next()) throw broken('it contains more than its list says')
    return manifest
  } catch (error) {
    throw error instanceof SandboxError && error.code !== 'invalid-input' ? error : unreadable(file, error)
  } finally {
    source.destroy()
  }
}

async function manifestOf(tar: TarReader): Promise<Manifest> {
  const first = await tar.next()
  if (first?.name !== MANIFEST || first.size > MANIFEST_BYTES) throw broken('it is not a backup of ringfence')
  const chunks: Uint8Array[] = []
  for await (const chunk of tar.content()) chunks.push(chunk)
  return manifestShape.parse(JSON.parse(Buffer.concat(chunks).toString('utf8')), 'manifest')
}

async function unpack(tar: TarReader, dir: string, expected: Manifest['files'][number]): Promise<void> {
  const entry = await tar.next()
  // SECURITY: the reader rejects names that are not plain relative paths; links and devices have another kind.
  if (entry?.name !== expected.path || entry.kind !== 'file' || entry.size !== expected.size)
    throw broken(`\`${expected.path}\` is missing or has another size`)
  const target = join(dir, entry.name)
  mkdirSync(dirname(target), { recursive: true, mode: 0o700 })
  const hash = createHash('sha256')
  const hashed = async function* (): AsyncGenerator<Uint8Array> {
    for await (const chunk of tar.content()) {
      hash.update(chunk)
      yield Buffer.from(chunk)
    }
  }
  await pipeline(Readable.from(hashed()), createWriteStream(target, { flags: 'wx', mode: 0o600 }))
  sync(target)
  if (hash.digest('hex') !== expected.sha256) throw broken(`\`${expected.path}\` was changed`)
}

async function described(dir: string, path: string): Promise<Manifest['files'][number]> {
  const hash = createHash('sha256')
  for await (const chunk of createReadStream(join(dir, path))) hash.update(chunk as Buffer)
  return { path, size: statSync(join(dir, path)).size, sha256: hash.digest('hex') }
}

const pathsIn = (dir: string): string[] =>
  readdirSync(dir, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(dir.length + 1))
    .sort()

function sync(file: string): void {
  const fd = openSync(file, 'r')
  try {
    fsyncSync(fd)
  } finally {
    closeSync(fd)
  }
}

const broken = (problem: string): SandboxError =>
  new SandboxError('conflict', `the backup is damaged: ${problem}`)

const exists = (file: string): SandboxError =>
  new SandboxError('file-exists', `\`${file}\` exists already`, { hint: 'name a new file' })

function unreadable(file: string, error: unknown): SandboxError {
  const { code, message } = error as NodeJS.ErrnoException
  if (code === 'ENOENT') return new SandboxError('file-not-found', `there is no backup \`${file}\``)
  return broken(message)
}
