import {
  chmodSync,
  lchownSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readlinkSync,
  symlinkSync,
  utimesSync,
} from 'node:fs'
import { open, readdir, rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { type TarEntry, TarReader } from '../../backends/tar/reader.ts'
import { SandboxError } from '../../model/errors.ts'

/** What an image may take. */
export type ImageBudget = {
  bytes: number
  entries: number
  /** Called before bytes are written; throws if there is no room for them. */
  readonly take: (bytes: number) => void
}

/** What a file takes on the disk even if it is empty. */
export const ENTRY_BYTES = 4096
/** All names of one layer, which are remembered while it is unpacked. */
const NAME_BYTES = 64 * 1024 * 1024
const MOST_LINKS = 40
const MOST_ID = 65_535
const NOBODY = 65_534
const REMOVED = '.wh.'
const REPLACED = '.wh..wh..opq'

const hostile = (what: string): SandboxError =>
  new SandboxError('path-traversal', `the image cannot be used: ${what}`)

const statOf = (path: string) => lstatSync(path, { throwIfNoEntry: false })

/**
 * The real path of a path in an unpacked tree, in which symbolic links are followed as if the tree were the root of a machine.
 * Missing directories are made if `made` is there, which is called before each. SECURITY: never leaves the tree,
 * whatever its links say; the last part is not followed. Nobody else may write to the tree.
 */
export function resolveIn(root: string, name: string, made?: () => void): string | undefined {
  const rest = name.split('/').filter((part) => part !== '' && part !== '.')
  let at = root
  let links = 0
  while (rest.length > 1) {
    const part = rest.shift() as string
    if (part === '..') {
      if (at !== root) at = dirname(at)
      continue
    }
    const path = join(at, part)
    const stat = statOf(path)
    if (stat?.isSymbolicLink()) {
      if (++links > MOST_LINKS) throw hostile(`\`${name}\` has too many links`)
      const target = readlinkSync(path)
      if (target.startsWith('/')) at = root
      rest.unshift(...target.split('/').filter((one) => one !== '' && one !== '.'))
      // The target of a link is a directory here, so its last part is followed too.
      continue
    }
    if (stat && !stat.isDirectory()) throw hostile(`\`${name}\` lies below a file`)
    if (!stat) {
      if (!made) return undefined
      made()
      mkdirSync(path, { mode: 0o755 })
    }
    at = path
  }
  const [last] = rest
  if (last === '..') throw hostile(`\`${name}\` leads outside`)
  return last === undefined ? at : join(at, last)
}

/** Applies one layer of an image to a tree. What cannot be part of a tree is left out and reported. */
export class LayerUnpacker {
  readonly #root: string
  readonly #budget: ImageBudget
  readonly #isRoot: boolean
  readonly #made = new Set<string>()
  readonly #replaced = new Set<string>()
  #parent: { readonly name: string; readonly path: string } | undefined
  /** Devices, pipes, and names that are not text. */
  leftOut = 0

  constructor(root: string, budget: ImageBudget, isRoot = process.getuid?.() === 0) {
    this.#root = root
    this.#budget = budget
    this.#isRoot = isRoot
  }

  async unpack(bytes: AsyncIterable<Uint8Array>): Promise<void> {
    const { bytes: most, entries } = this.#budget
    const limits = { bytes: most, entries, nameBytes: NAME_BYTES }
    const reader = new TarReader(bytes, { modes: 0o7777, image: true, ...limits })
    try {
      for (let entry = await reader.next(); entry; entry = await reader.next()) {
        this.#count()
        this.#budget.bytes -= entry.size
        await this.#take(reader, entry)
      }
    } finally {
      await reader.close()
    }
  }

  async #take(reader: TarReader, entry: TarEntry): Promise<void> {
    if (entry.kind === 'strange' || entry.kind === 'special') return void this.leftOut++
    if (entry.name === '') return
    const path = join(this.#parentOf(entry.name), baseOf(entry.name))
    if (baseOf(entry.name).startsWith(REMOVED)) return this.#remove(path)
    const before = statOf(path)
    if (before && !(before.isDirectory() && entry.kind === 'dir')) await this.#clear(path)
    this.#made.add(path)
    if (entry.kind === 'dir') this.#directory(path, before?.isDirectory() ?? false)
    else if (entry.kind === 'link') symlinkSync(entry.link, path)
    else if (entry.kind === 'hardlink') return this.#hardLink(entry, path)
    else await writeFile(path, reader.content(), this.#budget.take)
    this.#describe(path, entry)
  }

  /** INVARIANT: links and removals clear the remembered directory. */
  #parentOf(name: string): string {
    const parent = dirname(name)
    if (this.#parent?.name === parent) return this.#parent.path
    const path =
      parent === '.' ? this.#root : (resolveIn(this.#root, `${parent}/x`, () => this.#count()) as string)
    const found = { name: parent, path: parent === '.' ? path : dirname(path) }
    this.#parent = found
    return found.path
  }

  /** SECURITY: an entry with a long name makes many directories. */
  #count(): void {
    if (--this.#budget.entries < 0) throw new SandboxError('too-large', 'the image has too many files')
    this.#budget.take(ENTRY_BYTES)
  }

  /** SECURITY: a whole earlier layer may be below; the server goes on meanwhile. */
  async #clear(path: string): Promise<void> {
    this.#parent = undefined
    await rm(path, { recursive: true, force: true })
  }

  #directory(path: string, isThere: boolean): void {
    this.#parent = undefined
    if (!isThere) mkdirSync(path, { mode: 0o755 })
  }

  /** SECURITY: a hard link to a symbolic link, or through one out of the tree, is never made. */
  #hardLink({ name, link }: TarEntry, path: string): void {
    const target = resolveIn(this.#root, link)
    if (target === undefined || !statOf(target)?.isFile())
      throw hostile(
        `\`${name}\` is a hard link to \`${link.slice(0, 256)}\`, which is not a file of the image`,
      )
    linkSync(target, path)
  }

  /** A file of an earlier layer that this one does not have any more. */
  async #remove(path: string): Promise<void> {
    const name = baseOf(path)
    const parent = dirname(path)
    this.#parent = undefined
    if (name === REPLACED) {
      // Once is enough: afterwards everything there is of this layer.
      if (this.#replaced.has(parent)) return
      this.#replaced.add(parent)
      for (const one of await readdir(parent))
        if (!this.#made.has(join(parent, one))) await this.#clear(join(parent, one))
      return
    }
    const removed = name.slice(REMOVED.length)
    if (removed === '' || removed === '.' || removed === '..') throw hostile(`it removes \`${removed}\``)
    await this.#clear(join(parent, removed))
  }

  /** SECURITY: without setuid and setgid bits, which mean nothing inside and must mean nothing outside. */
  #describe(path: string, { kind, mode, uid, gid, modified }: TarEntry): void {
    if (kind === 'link') this.#parent = undefined
    if (this.#isRoot) lchownSync(path, idOf(uid), idOf(gid))
    if (kind === 'link') return
    chmodSync(path, kind === 'dir' ? mode & 0o1777 : mode & 0o777)
    if (kind === 'file') utimesSync(path, modified, modified)
  }
}

const baseOf = (name: string): string => name.slice(name.lastIndexOf('/') + 1)

const idOf = (id: number): number => (Number.isInteger(id) && id >= 0 && id <= MOST_ID ? id : NOBODY)

async function writeFile(
  path: string,
  content: AsyncIterable<Uint8Array>,
  take: (bytes: number) => void,
): Promise<void> {
  const file = await open(path, 'wx', 0o600)
  try {
    for await (const chunk of content) {
      take(chunk.length)
      await file.write(chunk)
    }
  } finally {
    await file.close()
  }
}
