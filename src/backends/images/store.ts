import { createHash } from 'node:crypto'
import {
  chmodSync,
  closeSync,
  createReadStream,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { writeAtomically } from '../../host/files/atomic-file.ts'
import { SandboxError } from '../../model/errors.ts'
import { padding, tarFile, tarOf } from '../tar/writer.ts'
import { DEFAULT_PROGRAMS, hostStamp, hostTree, skeleton } from './host-programs.ts'
import { packageTree } from './packages.ts'
import type { Tree, TreeEntry } from './tree.ts'
import { unpackLayer } from './unpack.ts'
import { layersInUse } from './uses.ts'

/** An image that was built here: one layer, stored in the OCI layout in the state directory. */
export type Image = {
  readonly name: string
  /** The digest of the manifest: what other tools call the image's digest. */
  readonly digest: string
  /** The digest of the configuration: what an engine calls the image's id. */
  readonly id: string
  readonly layer: string
  readonly manifest: string
  readonly bytes: number
  readonly files: number
  readonly source: ImageSource
  /** Identifies the input that the image was built from. */
  readonly input: string
  /** The host stamp at build time; while it is the same, the input is not collected again. */
  readonly stamp?: string
}

/** What an image is built from. */
export type ImageSource =
  | { readonly kind: 'host'; readonly programs: readonly string[] }
  | { readonly kind: 'packages'; readonly packages: readonly string[] }
  | { readonly kind: 'empty' }

const DEFAULT_IMAGE = 'default'
/** An image with directories only: enough to test an engine. */
export const PROBE_IMAGE = 'probe'
const NAME = /^[a-z0-9][a-z0-9._-]{0,63}$/

/** How a build reports progress and is cancelled. */
export type BuildOptions = {
  readonly onProgress?: ((text: string) => void) | undefined
}

/** Images that were built on this host, by name. */
export class ImageStore {
  readonly #dir: string
  /** Directories that are being unpacked, so that parallel sandboxes unpack an image once. */
  readonly #unpacking = new Map<string, Promise<string>>()
  readonly #stateDir: string
  #default: Promise<Image> | undefined

  constructor(stateDir: string) {
    this.#stateDir = stateDir
    this.#dir = join(stateDir, 'images')
  }

  list(): readonly Image[] {
    if (!existsSync(this.#dir)) return []
    return readdirSync(this.#dir)
      .filter((name) => name.endsWith('.json') && name !== `${PROBE_IMAGE}.json`)
      .sort()
      .flatMap((name) => this.get(name.slice(0, -'.json'.length)) ?? [])
  }

  get(name: string): Image | undefined {
    if (!NAME.test(name)) return undefined
    try {
      const image = JSON.parse(readFileSync(join(this.#dir, `${name}.json`), 'utf8')) as Image
      return existsSync(this.#blob(image.layer)) ? image : undefined
    } catch {
      return undefined
    }
  }

  /** Builds an image, or finds the one that the same input produced before. */
  async build(name: string, source: ImageSource, options: BuildOptions = {}): Promise<Image> {
    if (!NAME.test(name))
      throw new SandboxError('invalid-input', `\`${name}\` is not a valid image name`, {
        hint: 'use lower case letters, digits, dots and dashes, such as `tools`',
      })
    const say = options.onProgress ?? (() => {})
    // Before collecting the files: a change in between is noticed next time.
    const stamp = source.kind === 'host' ? { stamp: hostStamp(source.programs) } : {}
    const { tree, release } = await treeFor(source, say)
    try {
      const input = inputOf(tree)
      const known = this.get(name)
      if (known?.input === input) return this.#record({ ...known, ...stamp })
      const image = this.#record({ ...this.#write(name, source, tree, input, say), ...stamp })
      if (known && known.layer !== image.layer) this.#forget(known)
      return image
    } finally {
      release()
    }
  }

  /** The default image; built at its first use, and again when the host's programs have changed. */
  default(options: BuildOptions = {}): Promise<Image> {
    this.#default ??= this.#freshDefault(options)
    this.#default.catch(() => {
      this.#default = undefined
    })
    return this.#default
  }

  async #freshDefault(options: BuildOptions): Promise<Image> {
    const known = this.get(DEFAULT_IMAGE)
    // A default image that a user built with other programs stays as it is.
    const own = known && (known.source.kind !== 'host' || !sameNames(known.source.programs, DEFAULT_PROGRAMS))
    if (known && (own || known.stamp === hostStamp(DEFAULT_PROGRAMS))) return known
    return this.build(DEFAULT_IMAGE, { kind: 'host', programs: DEFAULT_PROGRAMS }, options)
  }

  /** Removes an image; returns whether it existed. Throws if a sandbox uses it. */
  remove(name: string): boolean {
    const image = this.get(name)
    if (!image) return false
    const [user] = layersInUse(this.#stateDir).get(image.layer) ?? []
    if (user !== undefined)
      throw new SandboxError('wrong-state', `the image \`${name}\` is in use by ${user}`, {
        hint: 'close the sandbox first',
      })
    rmSync(join(this.#dir, `${name}.json`), { force: true })
    this.#forget(image)
    return true
  }

  /** The image as an archive that engines can load; also a valid OCI layout. */
  async *archive(image: Image): AsyncGenerator<Buffer> {
    const [config, layer, manifest] = [image.id, image.layer, image.manifest].map(blobPath) as [
      string,
      string,
      string,
    ]
    const tags = [`ringfence/${image.name}:latest`]
    const files: [string, Buffer][] = [
      ['manifest.json', json([{ Config: config, RepoTags: tags, Layers: [layer] }])],
      ['oci-layout', json({ imageLayoutVersion: '1.0.0' })],
      [
        'index.json',
        json({
          schemaVersion: 2,
          manifests: [descriptor(MANIFEST, image.manifest, this.#size(image.manifest))],
        }),
      ],
      [config, readFileSync(this.#blob(image.id))],
      [manifest, readFileSync(this.#blob(image.manifest))],
    ]
    for (const [name, bytes] of files) {
      yield* tarFile(name, bytes.length)
      yield bytes
      yield padding(bytes.length)
    }
    const size = this.#size(image.layer)
    yield* tarFile(layer, size)
    for await (const piece of createReadStream(this.#blob(image.layer), { highWaterMark: 1 << 20 }))
      yield piece as Buffer
    yield padding(size)
    yield Buffer.alloc(1024)
  }

  /** The image as a directory, for backends that mount one. Unpacked once; read-only by convention. */
  async unpacked(image: Image, options: BuildOptions = {}): Promise<string> {
    const dir = join(this.#dir, 'roots', image.layer.slice('sha256:'.length))
    if (existsSync(dir)) return dir
    const unpacking = this.#unpacking.get(dir) ?? this.#unpack(image, dir, options)
    this.#unpacking.set(dir, unpacking)
    return unpacking.finally(() => this.#unpacking.delete(dir))
  }

  async #unpack(image: Image, dir: string, options: BuildOptions): Promise<string> {
    options.onProgress?.(`unpacking the image ${image.name}`)
    mkdirSync(dirname(dir), { recursive: true, mode: 0o755 })
    // A name of its own: other stores of this process may unpack the same image now.
    const temporary = mkdtempSync(`${dir}.`)
    try {
      chmodSync(temporary, 0o755)
      await unpackLayer(this.#blob(image.layer), temporary)
      renameSync(temporary, dir)
    } catch (error) {
      // Another process was faster with the same content.
      rmSync(temporary, { recursive: true, force: true })
      if (!existsSync(dir)) throw error
    }
    return dir
  }

  #write(name: string, source: ImageSource, tree: Tree, input: string, say: (text: string) => void): Image {
    mkdirSync(join(this.#dir, 'blobs', 'sha256'), { recursive: true, mode: 0o700 })
    const layer = this.#writeLayer(tree, say)
    const id = this.#writeBlob(json(configOf(layer.digest)))
    const manifest = this.#writeBlob(
      json({
        schemaVersion: 2,
        mediaType: MANIFEST,
        config: descriptor('application/vnd.oci.image.config.v1+json', id, this.#size(id)),
        layers: [descriptor('application/vnd.oci.image.layer.v1.tar', layer.digest, layer.bytes)],
      }),
    )
    const files = [...tree.values()].filter(({ kind }) => kind === 'file').length
    return {
      name,
      digest: manifest,
      id,
      layer: layer.digest,
      manifest,
      bytes: layer.bytes,
      files,
      source,
      input,
    }
  }

  #record(image: Image): Image {
    writeAtomically(join(this.#dir, `${image.name}.json`), JSON.stringify(image))
    return image
  }

  #writeLayer(tree: Tree, say: (text: string) => void): { readonly digest: string; readonly bytes: number } {
    const temporary = join(this.#dir, 'blobs', `layer.${process.pid}.tmp`)
    const hash = createHash('sha256')
    const out = openSync(temporary, 'w', 0o600)
    let bytes = 0
    let told = 0
    try {
      for (const piece of tarOf(tree)) {
        hash.update(piece)
        for (let at = 0; at < piece.length; ) at += writeSync(out, piece, at)
        bytes += piece.length
        if (bytes - told < PROGRESS_STEP) continue
        told = bytes
        say(`writing the image: ${Math.floor(bytes / MB)} MB`)
      }
    } finally {
      closeSync(out)
    }
    const digest = `sha256:${hash.digest('hex')}`
    renameSync(temporary, this.#blob(digest))
    return { digest, bytes }
  }

  #writeBlob(bytes: Buffer): string {
    const digest = `sha256:${createHash('sha256').update(bytes).digest('hex')}`
    writeFileSync(this.#blob(digest), bytes, { mode: 0o600 })
    return digest
  }

  /** Removes what no other image uses, including the unpacked directory. */
  #forget({ id, layer, manifest }: Image): void {
    const kept = [...this.list(), this.get(PROBE_IMAGE)].filter((other) => other !== undefined)
    const used = new Set(kept.flatMap((other) => [other.id, other.layer, other.manifest]))
    for (const digest of [id, layer, manifest])
      if (!used.has(digest)) rmSync(this.#blob(digest), { force: true })
    // Sandboxes may still use the old root of a rebuilt image; a later build removes it.
    const inUse = layersInUse(this.#stateDir)
    const roots = join(this.#dir, 'roots')
    for (const root of existsSync(roots) ? readdirSync(roots) : [])
      if (DIGEST.test(root) && !used.has(`sha256:${root}`) && !inUse.has(`sha256:${root}`))
        rmSync(join(roots, root), { recursive: true, force: true })
  }

  #blob(digest: string): string {
    return join(this.#dir, blobPath(digest))
  }

  #size(digest: string): number {
    return statSync(this.#blob(digest)).size
  }
}

const sameNames = (a: readonly string[], b: readonly string[]): boolean => a.join(' ') === b.join(' ')

/** The name of a completely unpacked root; one that is being unpacked has another name. */
const DIGEST = /^[0-9a-f]{64}$/
const MB = 1024 * 1024
const PROGRESS_STEP = 32 * MB
const MANIFEST = 'application/vnd.oci.image.manifest.v1+json'

const blobPath = (digest: string): string => `blobs/${digest.replace(':', '/')}`
const json = (value: unknown): Buffer => Buffer.from(JSON.stringify(value))
const descriptor = (mediaType: string, digest: string, size: number): Record<string, unknown> => ({
  mediaType,
  digest,
  size,
})

/** INVARIANT: contains no time and no name, so that the same files have the same digest. */
const configOf = (layer: string): Record<string, unknown> => ({
  architecture: process.arch === 'arm64' ? 'arm64' : 'amd64',
  os: 'linux',
  config: { Env: ['PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'] },
  rootfs: { type: 'layers', diff_ids: [layer] },
  history: [{ created: '1970-01-01T00:00:00Z', created_by: 'ringfence' }],
  created: '1970-01-01T00:00:00Z',
})

async function treeFor(
  source: ImageSource,
  say: (text: string) => void,
): Promise<{ readonly tree: Tree; readonly release: () => void }> {
  if (source.kind === 'empty') return { tree: skeleton(), release: () => {} }
  if (source.kind === 'packages') return packageTree(source.packages, say)
  say('collecting this host’s programs')
  const { tree, missing } = hostTree(source.programs)
  const wanted = missing.filter((name) => !DEFAULT_PROGRAMS.includes(name))
  if (wanted.length > 0)
    throw new SandboxError('invalid-input', `this host has no \`${wanted.join('`, `')}\``, {
      hint: 'install it, or build from packages: --package NAME',
    })
  return { tree, release: () => {} }
}

/** A cheap fingerprint: size, time and mode of every file, and the content of generated files. */
function inputOf(tree: Tree): string {
  const hash = createHash('sha256')
  for (const path of [...tree.keys()].sort())
    hash.update(JSON.stringify([path, summary(tree.get(path) as TreeEntry)]))
  return hash.digest('hex')
}

const summary = (entry: TreeEntry): unknown =>
  entry.kind === 'file' && 'source' in entry.content ? { ...entry, content: entry.content.size } : entry
