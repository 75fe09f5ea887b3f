import { randomBytes } from 'node:crypto'
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import * as zlib from 'node:zlib'
import { Admission } from '../../model/admission.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Signer } from '../archives/s3.ts'
import { type DiskQuota, DiskQuotas, type DiskWrite } from '../disk-quotas.ts'
import { type AwsCredentials, ecrCredentials } from './ecr.ts'
import { type ImageName, imageText, parseImageName } from './image-name.ts'
import { ENTRY_BYTES, LayerUnpacker } from './layer.ts'
import { PROVISION_RECIPE, provision } from './provision.ts'
import { type Credentials, type Descriptor, type Manifest, type Mirror, Registry } from './registry.ts'
import { TreeUsers } from './tree-users.ts'

/** What an image says about the programs in it. */
type ImageConfig = {
  readonly env: Readonly<Record<string, string>>
  readonly workdir: string | undefined
  readonly user: string | undefined
  /** The entry point with its arguments, as a command line. */
  readonly command: readonly string[]
}

/** An unpacked image. */
export type ImageTree = { readonly digest: string; readonly name: string; readonly config: ImageConfig }

/** The operator's settings for images. */
export type ImageSettings = {
  readonly mirrors: readonly Mirror[]
  /** The registries that may be used; absent: every public one, and the mirrors. */
  readonly registries?: readonly string[] | undefined
  /** The most that one image may take when it is unpacked. */
  readonly maxMb: number
  readonly maxFiles: number
  /** The most that the images of one tenant may take together. */
  readonly maxTenantMb: number
}

type Parts = {
  /** Where the trees are. */
  readonly dir: string
  /** The program that becomes `sudo`. */
  readonly agent: string
  readonly settings: () => ImageSettings
  /** Throws if the disk of the server is almost full. */
  readonly assertFreeSpace?: () => void
  /** Signs requests to AWS; an optional package. */
  readonly signer?: () => Promise<Signer>
}
const missingSigner = (): Promise<Signer> => Promise.reject(new Error('no signer'))

/** How an image is asked for. */
export type PullOptions = {
  readonly credentials?: Credentials | AwsCredentials | undefined
  /** Whom the image counts for. */
  readonly tenant?: string | undefined
  readonly say?: (line: string) => void
}

const MB = 1024 * 1024
/** Unpacking uses a processor, and memory for the names of a layer. */
const UNPACKED_AT_ONCE = 4

/**
 * Images of registries as directory trees, by the digest of their manifest. SECURITY: the manifest is asked for at every pull,
 * with the caller's credentials, and a repository must have given all layers once before its manifest leads to a tree. So nobody
 * gets from here what the registry would not give, also not with a registry of one's own that repeats the manifest of another.
 */
export class Images {
  readonly #parts: Parts
  readonly #underWay = new Map<string, Promise<void>>()
  readonly #users: TreeUsers
  readonly #quotas: DiskQuotas
  readonly #turns = new Admission('images', {
    running: UNPACKED_AT_ONCE,
    waiting: Number.POSITIVE_INFINITY,
  })

  constructor(parts: Parts) {
    this.#parts = parts
    this.#quotas = new DiskQuotas(parts.assertFreeSpace)
    this.#users = new TreeUsers(parts.dir)
  }

  /** Pulls an image unless its tree is here. */
  async pull(text: string, { credentials, tenant, say = () => {} }: PullOptions = {}): Promise<ImageTree> {
    const name = parseImageName(text)
    const { mirrors } = this.#assertPermitted(name)
    const password = await this.#passwordOf(name, credentials, mirrors)
    const registry = new Registry(name, mirrors, password, tenant)
    const manifest = await registry.manifest()
    const { digest } = manifest
    const source = `${name.registry}/${name.repository}`
    this.#markUsed(digest)
    const write = await this.#quotas.begin(this.#quotaOf(tenant))
    try {
      if (this.#has(digest) && this.#users.isFrom(hashOf(digest), source))
        say(`${imageText(name)}: ${digest} is here already`)
      else {
        this.#parts.assertFreeSpace?.()
        write.take(0)
        await this.#once(`${tenant ?? ''} ${source}@${digest}`, async () => {
          if (this.#turns.running >= UNPACKED_AT_ONCE) say(`${imageText(name)}: other images come first`)
          await this.#turns.run(
            async () => {
              if (this.#has(digest)) await this.#prove(registry, manifest, imageText(name), say)
              else await this.#unpack(registry, manifest, { name: imageText(name), say, write })
            },
            { tenant: tenant ?? '', keyId: '' },
          )
          this.#users.addSource(hashOf(digest), source)
        })
      }
      if (tenant !== undefined) await this.#count(digest, tenant)
    } finally {
      await write.end()
    }
    // The name that the caller used, not that of the first pull.
    return { ...this.get(digest), name: imageText(name) }
  }

  /** SECURITY: what a pull unpacks counts for its tenant at once, so that parallel pulls share one quota. */
  #quotaOf(tenant: string | undefined): DiskQuota {
    const { maxTenantMb } = this.#parts.settings()
    return {
      name: `images ${tenant ?? ''}`,
      stored: async () => (tenant === undefined ? new Map() : this.#users.treesOf(tenant)),
      bytes: tenant === undefined ? Number.POSITIVE_INFINITY : maxTenantMb * MB,
      refuse: () => noRoom(maxTenantMb),
    }
  }

  /** INVARIANT: the tree counts before anything is made of it, and the last one that did not fit is removed again. */
  async #count(digest: string, tenant: string): Promise<void> {
    const tree = hashOf(digest)
    this.#users.addTenant(tree, tenant)
    try {
      this.#assertRoom(tenant)
    } catch (error) {
      if (this.#users.removeTenant(tree, tenant))
        await rm(this.#path(digest), { recursive: true, force: true })
      throw error
    }
  }

  #assertRoom(tenant: string): void {
    const { maxTenantMb } = this.#parts.settings()
    const used = [...this.#users.treesOf(tenant).values()].reduce((total, bytes) => total + bytes, 0)
    if (used > maxTenantMb * MB) throw noRoom(maxTenantMb)
  }

  /** Lets a repository give all layers of a tree that another one gave before. */
  async #prove(
    registry: Registry,
    { config, layers }: Manifest,
    name: string,
    say: (line: string) => void,
  ): Promise<void> {
    await registry.small(config)
    for (const [index, layer] of layers.entries()) {
      say(`${name}: layer ${index + 1} of ${layers.length}, which is here already, is checked`)
      await registry.blob(layer, async () => undefined)
    }
  }

  #markUsed(digest: string): void {
    const now = new Date()
    if (this.#has(digest)) utimesSync(join(this.#path(digest), RECORD), now, now)
  }

  /**
   * Removes the trees that nobody needs any more. INVARIANT: a tree that was pulled lately stays, because its build has not
   * recorded yet that it needs it.
   */
  async prune(inUse: ReadonlySet<string>, roots: ReadonlySet<string>, before: number): Promise<number> {
    if (!existsSync(this.#parts.dir)) return 0
    const old = readdirSync(this.#parts.dir).filter((name) => {
      const path = join(this.#parts.dir, name)
      const used = statSync(join(path, RECORD), { throwIfNoEntry: false })?.mtimeMs
      return (
        used !== undefined && used < before && !inUse.has(`sha256:${name}`) && !roots.has(join(path, TREE))
      )
    })
    for (const name of old) await rm(join(this.#parts.dir, name), { recursive: true, force: true })
    return old.length
  }

  /** An unpacked image. */
  get(digest: string): ImageTree {
    const file = join(this.#path(digest), RECORD)
    if (!existsSync(file))
      throw new SandboxError('not-found', 'the image of this template is missing on this server', {
        hint: 'build the template again',
      })
    return JSON.parse(readFileSync(file, 'utf8')) as ImageTree
  }

  /** The directories of a root file system with this image, the topmost first. */
  layersOf(digest: string): readonly string[] {
    const path = this.#path(digest)
    this.get(digest)
    const upper = join(path, `provision-${PROVISION_RECIPE}`)
    if (!existsSync(upper)) this.#provision(path, upper)
    return [upper, join(path, TREE)]
  }

  #provision(path: string, upper: string): void {
    const draft = join(path, `.draft-${randomBytes(6).toString('hex')}`)
    mkdirSync(draft, { mode: 0o755 })
    try {
      provision(join(path, TREE), draft, this.#parts.agent)
      renameSync(draft, upper)
    } finally {
      rmSync(draft, { recursive: true, force: true })
    }
  }

  async #passwordOf(
    name: ImageName,
    credentials: PullOptions['credentials'],
    mirrors: readonly Mirror[],
  ): Promise<Credentials | undefined> {
    if (!credentials || !('region' in credentials)) return credentials
    return ecrCredentials(name, credentials, mirrors, this.#parts.signer ?? missingSigner)
  }

  /** Removes what an interrupted pull left. */
  async sweep(): Promise<void> {
    if (!existsSync(this.#parts.dir)) return
    for (const name of readdirSync(this.#parts.dir))
      if (name.startsWith('.draft-')) await rm(join(this.#parts.dir, name), { recursive: true, force: true })
  }

  #assertPermitted(name: ImageName): ImageSettings {
    const settings = this.#parts.settings()
    const { registries, mirrors } = settings
    const isKnown = mirrors.some(({ registry }) => registry === name.registry)
    if (registries === undefined || registries.includes(name.registry) || isKnown) return settings
    throw new SandboxError('forbidden', `images of the registry \`${name.registry}\` may not be used`, {
      hint: `the operator can permit it: \`registries = ["${name.registry}"]\` in [images]`,
    })
  }

  #has(digest: string): boolean {
    return existsSync(join(this.#path(digest), RECORD))
  }

  #path(digest: string): string {
    return join(this.#parts.dir, hashOf(digest))
  }

  /**
   * Two pulls of one image share the work. SECURITY: only from the same place, because another one may never end, and only of the
   * same tenant, whose quota may end it.
   */
  #once(source: string, work: () => Promise<void>): Promise<void> {
    const before = this.#underWay.get(source)
    if (before) return before
    const doing = work().finally(() => this.#underWay.delete(source))
    this.#underWay.set(source, doing)
    return doing
  }

  async #unpack(
    registry: Registry,
    { digest, config, layers }: Manifest,
    { name, say, write }: Unpacking,
  ): Promise<void> {
    const { maxMb, maxFiles } = this.#parts.settings()
    const said = configOf(await registry.small(config))
    const draft = join(this.#parts.dir, `.draft-${randomBytes(6).toString('hex')}`)
    mkdirSync(join(draft, TREE), { recursive: true, mode: 0o755 })
    const budget = { bytes: maxMb * MB, entries: maxFiles, take: write.take }
    try {
      for (const [index, layer] of layers.entries()) {
        say(`${name}: layer ${index + 1} of ${layers.length}, ${Math.ceil(layer.size / MB)} MB`)
        const unpacker = new LayerUnpacker(join(draft, TREE), budget)
        await registry.blob(layer, (bytes) => unpacker.unpack(unpacked(layer, bytes)))
        if (unpacker.leftOut > 0) say(`${name}: ${unpacker.leftOut} devices, pipes or strange names left out`)
      }
      writeFileSync(join(draft, RECORD), JSON.stringify({ digest, name, config: said } satisfies ImageTree))
      if (this.#has(digest)) return
      renameSync(draft, this.#path(digest))
      const files = (maxFiles - budget.entries) * ENTRY_BYTES
      this.#users.setBytes(hashOf(digest), maxMb * MB - budget.bytes + files)
    } finally {
      await rm(draft, { recursive: true, force: true })
    }
  }
}

/** A pull whose image is unpacked. */
type Unpacking = {
  readonly name: string
  readonly say: (line: string) => void
  readonly write: DiskWrite
}

const noRoom = (maxTenantMb: number): SandboxError =>
  new SandboxError('resource-limit-exceeded', `the images of this tenant take more than ${maxTenantMb} MB`, {
    hint: 'remove templates that are not needed; their images are removed a day later. The operator can raise `max_mb_per_tenant` in [images]',
  })

function hashOf(digest: string): string {
  const hash = /^sha256:([0-9a-f]{64})$/.exec(digest)?.[1]
  if (!hash) throw new SandboxError('internal', 'not a digest')
  return hash
}

const TREE = 'root'
const RECORD = 'image.json'

/** The archive in a layer. SECURITY: the reader of the archive counts what comes out, so that a small layer cannot grow without end. */
function unpacked({ mediaType }: Descriptor, bytes: AsyncIterable<Uint8Array>): AsyncIterable<Uint8Array> {
  if (/foreign|nondistributable/.test(mediaType))
    throw new SandboxError('unsupported', 'the image has a layer that is not in its registry')
  if (/[.+]gzip$/.test(mediaType)) return through(bytes, zlib.createGunzip())
  if (/[.+]zstd$/.test(mediaType)) return through(bytes, zstd())
  if (/\.tar$/.test(mediaType)) return bytes
  throw new SandboxError(
    'unsupported',
    `the image has a layer of the unknown type \`${mediaType.slice(0, 128)}\``,
  )
}

function zstd(): NodeJS.ReadWriteStream {
  const { createZstdDecompress } = zlib as { createZstdDecompress?: () => NodeJS.ReadWriteStream }
  if (createZstdDecompress) return createZstdDecompress()
  throw new SandboxError(
    'unsupported',
    'the image has a layer compressed with zstd, which this version of Node cannot read',
    {
      hint: 'use Node 22.15 or newer',
    },
  )
}

async function* through(
  bytes: AsyncIterable<Uint8Array>,
  stream: NodeJS.ReadWriteStream,
): AsyncGenerator<Uint8Array, void> {
  const feeding = (async () => {
    for await (const chunk of bytes)
      if (!stream.write(chunk)) await new Promise<void>((resolve) => stream.once('drain', resolve))
    stream.end()
  })()
  feeding.catch((error: unknown) => (stream as zlib.Gunzip).destroy(error as Error))
  try {
    for await (const chunk of stream as AsyncIterable<Uint8Array>) yield chunk
    await feeding
  } catch (error) {
    if (error instanceof SandboxError) throw error
    throw new SandboxError('invalid-input', 'a layer of the image is not a valid archive', { cause: error })
  } finally {
    ;(stream as zlib.Gunzip).destroy()
  }
}

const text = (value: unknown): string | undefined =>
  typeof value === 'string' && value !== '' && value.length < 4096 && !value.includes('\0')
    ? value
    : undefined

const list = (value: unknown): readonly string[] =>
  Array.isArray(value) ? value.filter((one): one is string => typeof one === 'string').slice(0, 1000) : []

/** The part of an image's configuration that is used here. */
function configOf(bytes: Uint8Array): ImageConfig {
  const { config = {} } = parsed(bytes)
  const pairs = list(config.Env).flatMap((pair): [string, string][] => {
    const [, name, value] = /^([A-Za-z_][A-Za-z0-9_]*)=([^\0]*)$/s.exec(pair) ?? []
    return name === undefined || value === undefined ? [] : [[name, value]]
  })
  return {
    env: Object.fromEntries(pairs),
    workdir: text(config.WorkingDir),
    user: text(config.User),
    command: [...list(config.Entrypoint), ...list(config.Cmd)],
  }
}

function parsed(bytes: Uint8Array): { readonly config?: Readonly<Record<string, unknown>> } {
  try {
    const value = JSON.parse(Buffer.from(bytes).toString('utf8')) as {
      config?: Record<string, unknown> | null
    }
    return value.config ? { config: value.config } : {}
  } catch (cause) {
    throw new SandboxError('invalid-input', 'the configuration of the image is not JSON', { cause })
  }
}
