import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { SandboxError } from '../../model/errors.ts'
import type { IdRanges, PathFact, RootLayer, WritableRoot } from '../../model/plan.ts'
import { hostPath } from '../files/facts.ts'
import { caller } from '../system.ts'
import { baseTree } from './base-tree.ts'
import { copyDisk, DiskImages, formatter, mostBytes } from './disk-image.ts'
import { idRanges } from './id-ranges.ts'

/** The name of the disk in a sandbox's private directory. */
const DISK = 'disk'

/** What the programs of the host are, as `dpkg` knows them. */
const DPKG = '/var/lib/dpkg'
const RETRY_MS = 60_000

/** What a root needs. */
export type RootRequest = {
  /** The sandbox's private directory; it takes the disk, and a disk that is there is used again. */
  readonly dir: string
  readonly diskMb: number
  /** A disk to start from; absent: an empty one. */
  readonly from?: string | undefined
  /** Unpacked image trees, the topmost first, that belong to the host's root user; absent: the host's programs. */
  readonly lower?: readonly string[] | undefined
}

const factOf = (path: string): PathFact => {
  const { fact } = hostPath(path)
  if (!fact) throw new SandboxError('launch-failed', `\`${path}\` is missing`)
  return fact
}

/** SECURITY: a disk keeps its size, so a larger one would exceed the limit. */
async function copied(from: string, to: string, diskMb: number): Promise<void> {
  if (statSync(from).size > mostBytes(diskMb))
    throw new SandboxError('resource-limit-exceeded', `the snapshot has a larger disk than ${diskMb} MB`, {
      hint: 'ask for a larger `diskMb`',
    })
  await copyDisk(from, to)
}

/** The host's programs with a copy of what belongs to them. */
const hostLayers = (base: string): readonly RootLayer[] => [
  { target: '/', lower: [factOf(join(base, 'root'))] },
  { target: '/usr', lower: [factOf(join(base, 'usr')), factOf('/usr')] },
  ...(existsSync(DPKG) ? [{ target: DPKG, lower: [join(base, 'dpkg'), DPKG].map(factOf) }] : []),
]

/** An image with our tools. */
const imageLayers = (base: string, lower: readonly string[]): readonly RootLayer[] => [
  { target: '/', lower: [join(base, 'tools'), ...lower].map(factOf) },
]

/** Prepares root file systems that belong to one sandbox each. */
export class WritableRoots {
  readonly #dir: string
  readonly #agent: string
  #ids: IdRanges | { readonly reason: string } | undefined
  #disks: DiskImages | undefined
  #base: Promise<string> | undefined
  /** Why a root could not be started here, and when. */
  #failed: { readonly reason: string; readonly at: number } | undefined

  /** `dir` holds the copies of the host's files; `agent` becomes `sudo`. */
  constructor(dir: string, agent: string) {
    this.#dir = dir
    this.#agent = agent
  }

  /** Why this host has no writable roots; undefined if it has. */
  unavailable(): { readonly reason: string; readonly fix: string } | undefined {
    if (process.platform !== 'linux') return { reason: 'a writable root needs Linux', fix: 'use Linux' }
    if (caller().uid !== 0)
      return {
        reason: 'a writable root needs a server that runs as root',
        fix: 'start `ringfence serve` as root',
      }
    if (!formatter()) return { reason: 'mkfs.ext4 is not installed', fix: 'apt-get install e2fsprogs' }
    if (!existsSync('/dev/loop-control'))
      return {
        reason: 'there are no loop devices',
        fix: 'modprobe loop, or pass /dev/loop-control to this container',
      }
    this.#ids ??= idRanges()
    if ('reason' in this.#ids)
      return { reason: this.#ids.reason, fix: 'see docs/writable-root.md, "Requirements"' }
    return this.#failed === undefined || Date.now() - this.#failed.at > RETRY_MS
      ? undefined
      : {
          reason: this.#failed.reason,
          fix: 'Linux 5.19 or newer with overlay and id-mapped mounts is needed',
        }
  }

  /** Remembers for a while that this host cannot start a root, so that other sandboxes do without. */
  fail(reason: string): void {
    this.#failed = { reason, at: Date.now() }
  }

  /** Whether a private directory holds the disk of a root. */
  has(dir: string): boolean {
    return existsSync(join(dir, DISK))
  }

  /** The root of a new sandbox, or of one that was suspended. */
  async prepare({ dir, diskMb, from, lower }: RootRequest): Promise<WritableRoot> {
    const missing = this.unavailable()
    if (missing) throw new SandboxError('unsupported', missing.reason, { hint: missing.fix })
    const ids = this.#ids as IdRanges
    mkdirSync(this.#dir, { recursive: true, mode: 0o700 })
    const base = await this.#baseTree()
    const layers = lower ? imageLayers(base, lower) : hostLayers(base)
    this.#disks ??= new DiskImages(this.#dir, ids.stored, this.#agent)
    const disk = join(dir, DISK)
    if (!existsSync(disk)) {
      // A disk whose creation was cut off must not count as one.
      const draft = `${disk}.draft`
      rmSync(draft, { force: true })
      await (from ? copied(from, draft, diskMb) : this.#disks.create(draft, diskMb))
      renameSync(draft, disk)
    }
    return { layers, disk: factOf(disk), ids, ...(lower ? { image: lower.map(factOf) } : {}) }
  }

  #baseTree(): Promise<string> {
    this.#base ??= this.#build().catch((error: unknown) => {
      this.#base = undefined
      throw error
    })
    return this.#base
  }

  /** INVARIANT: called before this process has started a sandbox on one of the older copies. */
  async #build(): Promise<string> {
    // A root over an image may have been prepared first; then a template is ours. Older versions left spare disks.
    const left = this.#disks ? /^(base-|\.draft-)/ : /^(base-|\.draft-|template-|spare-)/
    const before = readdirSync(this.#dir)
    const path = await baseTree(this.#dir, this.#agent)
    for (const name of before)
      if (left.test(name) && join(this.#dir, name) !== path)
        rmSync(join(this.#dir, name), { recursive: true, force: true })
    return path
  }
}
