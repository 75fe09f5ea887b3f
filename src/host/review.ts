import { randomBytes } from 'node:crypto'
import {
  chownSync,
  closeSync,
  constants,
  existsSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  readSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { SandboxError } from '../model/errors.ts'
import type { Mount, PathFact } from '../model/plan.ts'
import { hostPath } from './facts.ts'
import { applyChange } from './review-apply.ts'
import { run } from './spawn.ts'

/** One thing that a command changed behind the overlay. */
export type Change = {
  readonly change: 'added' | 'changed' | 'deleted' | 'mode'
  readonly kind: 'file' | 'dir' | 'link' | 'other'
  /** The original's path on the host. */
  readonly path: string
  /** Below the mounted directory. */
  readonly relative: string
  readonly root: string
  /** Where the new content lies; absent for what is deleted. */
  readonly from?: string
  readonly mode: number
  readonly size: number
  readonly binary: boolean
  readonly target?: string
}

type Record = {
  readonly id: string
  /** On the kernel's own clock for files: whatever of the originals carries a later one changed meanwhile. */
  readonly startedNs: string
  readonly mounts: readonly { readonly real: string; readonly dir: string }[]
}

const HOME = 'reviews'

/** Changes that wait for a person's word. They lie under the state directory until they are applied or dropped. */
export class Review {
  readonly id: string
  readonly #dir: string
  readonly #agent: string
  #record: Record

  private constructor(dir: string, agent: string, record: Record) {
    this.#dir = dir
    this.#agent = agent
    this.#record = record
    this.id = record.id
  }

  /** Makes room for the changes of so many mounts. `owner` is who will write there. */
  static create(stateDir: string, agent: string, count: number, owner: PathFact | undefined): Review {
    const id = `rv_${randomBytes(6).toString('hex')}`
    const dir = join(stateDir, HOME, id)
    mkdirSync(dir, { recursive: true, mode: 0o700 })
    for (let index = 0; index < count; index++) {
      for (const name of ['', 'upper', 'work']) {
        const place = join(dir, String(index), name)
        mkdirSync(place, { recursive: true, mode: 0o755 })
        if (process.getuid?.() === 0 && owner) chownSync(place, owner.uid, owner.gid)
      }
    }
    const review = new Review(dir, agent, { id, startedNs: clockOf(dir), mounts: [] })
    return review
  }

  static open(stateDir: string, agent: string, id: string): Review {
    const file = join(stateDir, HOME, id, 'review.json')
    if (!/^rv_[0-9a-f]+$/.test(id) || !existsSync(file))
      throw new SandboxError('invalid-input', `there is no review \`${id}\``, { hint: 'ringfence review ls' })
    return new Review(join(stateDir, HOME, id), agent, JSON.parse(readFileSync(file, 'utf8')) as Record)
  }

  static list(stateDir: string): readonly string[] {
    const home = join(stateDir, HOME)
    return existsSync(home) ? readdirSync(home).filter((id) => existsSync(join(home, id, 'review.json'))) : []
  }

  /** The places for a plan; each is one mount's. */
  places(): readonly PathFact[] {
    return readdirSync(this.#dir)
      .filter((name) => /^\d+$/.test(name))
      .sort((a, b) => Number(a) - Number(b))
      .map((name) => hostPath(join(this.#dir, name)).fact as PathFact)
  }

  /** Remembers which originals the changes belong to, for whoever looks at them later. */
  keep(mounts: readonly Mount[]): void {
    const kept = mounts.flatMap(({ real, overlay }) => (overlay ? [{ real, dir: overlay.real }] : []))
    this.#record = { ...this.#record, mounts: kept }
    writeFileSync(join(this.#dir, 'review.json'), JSON.stringify(this.#record), { mode: 0o600 })
  }

  /** What was changed, in the order of paths. */
  async changes(): Promise<readonly Change[]> {
    const all: Change[] = []
    for (const { real, dir } of this.#record.mounts)
      all.push(...changesOf(real, join(dir, 'upper'), await this.#records(join(dir, 'upper'))))
    return all.sort((a, b) => (a.path < b.path ? -1 : 1))
  }

  /** Makes the chosen changes real, each by itself and whole; resolves with those that could not be. */
  async apply(
    chosen: (change: Change) => boolean = () => true,
  ): Promise<readonly { readonly path: string; readonly why: string }[]> {
    const refused: { path: string; why: string }[] = []
    for (const change of (await this.changes()).filter(chosen)) {
      try {
        applyChange(change, BigInt(this.#record.startedNs))
      } catch (error) {
        refused.push({ path: change.path, why: (error as Error).message })
      }
    }
    if ((await this.changes()).length === 0) this.drop()
    return refused
  }

  drop(): void {
    rmSync(this.#dir, { recursive: true, force: true })
  }

  async #records(upper: string): Promise<readonly string[]> {
    const result = await run({ file: this.#agent, args: ['changes', upper], env: {}, control: false }, {})
    if (result.exit.code !== 0)
      throw new SandboxError(
        'internal',
        `the changes cannot be read: ${Buffer.from(result.stderr).toString()}`,
      )
    return Buffer.from(result.stdout).toString('utf8').split('\0')
  }
}

/**
 * Now, as the kernel dates files: it counts in steps of a few milliseconds. Waits for the next step, so that whatever was
 * written before carries an earlier date.
 */
function clockOf(dir: string): string {
  const stamp = (): bigint => {
    writeFileSync(join(dir, 'started'), '')
    return statSync(join(dir, 'started'), { bigint: true }).ctimeNs
  }
  const first = stamp()
  let now = first
  while (now === first) {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1)
    now = stamp()
  }
  return String(now)
}

const KINDS: Readonly<{ [kind: string]: Change['kind'] }> = { f: 'file', d: 'dir', l: 'link', w: 'other' }

function changesOf(root: string, upper: string, records: readonly string[]): readonly Change[] {
  const changes: Change[] = []
  const seen = new Set<string>()
  for (let i = 0; i + 2 < records.length; i += 3) {
    const [kind = '', mode = '0', size = '0', opaque = '0'] = (records[i] ?? '').split(' ')
    const relative = records[i + 1] ?? ''
    seen.add(relative)
    const entry: Entry = {
      kind: KINDS[kind] ?? 'other',
      whiteout: kind === 'w',
      mode: Number.parseInt(mode, 8) & 0o777,
      size: Number(size),
      target: records[i + 2] ?? '',
    }
    const change = changeOf(root, upper, relative, entry)
    if (change) changes.push(change)
    if (opaque === '1') changes.push(...hidden(root, relative))
  }
  // A directory that was made anew hides what the old one held, but not what stands in the new one.
  return changes.filter(
    (one) => one.change !== 'deleted' || one.from === undefined || !seen.has(one.relative),
  )
}

type Entry = Pick<Change, 'kind' | 'mode' | 'size'> & { readonly whiteout: boolean; readonly target: string }

function changeOf(root: string, upper: string, relative: string, entry: Entry): Change | undefined {
  const path = join(root, relative)
  const from = join(upper, relative)
  const original = lstatSync(path, { throwIfNoEntry: false })
  const { kind, mode, size, target, whiteout } = entry
  if (whiteout) return original && deleted(root, relative)
  const binary = kind === 'file' && isBinary(from)
  const base = { kind, path, relative, root, from, mode, size, binary, ...(target ? { target } : {}) }
  if (!original) return { change: 'added', ...base }
  const same =
    (kind === 'dir' && original.isDirectory()) ||
    (kind === 'link' && original.isSymbolicLink() && readlinkSync(path) === target) ||
    (kind === 'file' && original.isFile() && original.size === size && sameContent(path, from))
  if (!same) return { change: 'changed', ...base }
  if (kind === 'link' || (original.mode & 0o777) === mode) return undefined
  return { change: 'mode', ...base }
}

function deleted(root: string, relative: string): Change {
  const path = join(root, relative)
  const stat = lstatSync(path)
  const kind = stat.isDirectory() ? 'dir' : stat.isFile() ? 'file' : stat.isSymbolicLink() ? 'link' : 'other'
  const { size } = stat
  return { change: 'deleted', kind, path, relative, root, mode: stat.mode & 0o777, size, binary: false }
}

/** What the original directory held; all of it is behind the new one. */
function hidden(root: string, relative: string): readonly Change[] {
  const path = join(root, relative)
  if (!lstatSync(path, { throwIfNoEntry: false })?.isDirectory()) return []
  return readdirSync(path).map((name) => ({ ...deleted(root, join(relative, name)), from: path }))
}

const SNIFFED = 8192

const isBinary = (file: string): boolean => piece(file, 0, SNIFFED).includes(0)

const PIECE = 1024 * 1024

/** Of two files that are as long as each other. */
function sameContent(a: string, b: string): boolean {
  for (let at = 0; ; at += PIECE) {
    const [one, other] = [piece(a, at, PIECE), piece(b, at, PIECE)]
    if (!one.equals(other)) return false
    if (one.length < PIECE) return true
  }
}

function piece(file: string, at: number, length: number): Buffer {
  const fd = openSync(file, constants.O_RDONLY | constants.O_NOFOLLOW)
  try {
    const bytes = Buffer.alloc(length)
    return bytes.subarray(0, readSync(fd, bytes, 0, length, at))
  } finally {
    closeSync(fd)
  }
}
