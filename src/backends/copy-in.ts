import {
  type BigIntStats,
  closeSync,
  constants,
  fstatSync,
  lstatSync,
  openSync,
  readdirSync,
  readlinkSync,
  readSync,
} from 'node:fs'
import { basename } from 'node:path'
import { O_PATH } from '../host/files/walk-open.ts'
import { SandboxError } from '../model/errors.ts'
import type { Mask, Mount, Plan } from '../model/plan.ts'
import { header, padding } from './tar/writer.ts'

const { O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_RDONLY } = constants

/** The state of a host file when it was copied, to detect later changes on the host. */
export type Copied = {
  readonly kind: 'dir' | 'file' | 'link'
  readonly ino: bigint
  readonly size: bigint
  readonly ctimeNs: bigint
}

/** Relative path → state of the copied file. The mount itself is the empty path. */
export type Manifest = Map<string, Copied>

/** The largest mount that is copied. */
const MAX_COPY_BYTES = 4 * 1024 ** 3
const MAX_FILES = 500_000
const PIECE = 256 * 1024

type Reader = { readonly uid: number; readonly gid: number } | undefined

/**
 * A mount as a tar stream. SECURITY: it starts at the inode that the policy checked, follows no symbolic link, skips
 * masked paths and, if we are root on behalf of another user, files that this user could not read.
 */
export class CopyIn {
  readonly manifest: Manifest = new Map()
  readonly #mount: Mount
  readonly #masks: readonly Mask[]
  readonly #reader: Reader
  #bytes = 0

  constructor(plan: Plan, mount: Mount) {
    this.#mount = mount
    this.#masks = plan.masks
    this.#reader = process.getuid?.() === 0 ? plan.runAs : undefined
  }

  *stream(): Generator<Buffer> {
    const { real, dev, ino, kind } = this.#mount
    const top = openSync(real, O_PATH | O_NOFOLLOW)
    try {
      const stat = fstatSync(top, { bigint: true })
      if (String(stat.dev) !== dev || String(stat.ino) !== ino)
        throw new SandboxError('launch-failed', `${real} was replaced after the policy check`)
      if (kind === 'dir') {
        this.#note('', stat)
        yield* this.#below(`/proc/self/fd/${top}`, '')
      } else yield* this.#file(`/proc/self/fd/${top}`, basename(this.#mount.target), stat, 0)
    } finally {
      closeSync(top)
    }
    yield Buffer.alloc(1024)
  }

  *#below(dir: string, relative: string): Generator<Buffer> {
    const fd = openSync(dir, O_RDONLY | O_DIRECTORY)
    try {
      const held = `/proc/self/fd/${fd}`
      for (const name of readdirSync(held).sort()) yield* this.#entry(held, name, relative)
    } finally {
      closeSync(fd)
    }
  }

  *#entry(held: string, name: string, above: string): Generator<Buffer> {
    const relative = above === '' ? name : `${above}/${name}`
    const path = `${held}/${name}`
    const stat = lstatSync(path, { bigint: true, throwIfNoEntry: false })
    if (!stat || this.#isMasked(stat) || !this.#mayRead(stat)) return
    const mode = Number(stat.mode) & 0o777
    const modified = Number(stat.mtimeMs / 1000n)
    if (stat.isDirectory()) {
      this.#note(relative, stat)
      yield* header({ name: `${relative}/`, type: '5', mode, modified })
      const inner = openSync(path, O_PATH | O_DIRECTORY | O_NOFOLLOW)
      try {
        yield* this.#below(`/proc/self/fd/${inner}`, relative)
      } finally {
        closeSync(inner)
      }
    } else if (stat.isSymbolicLink()) {
      this.#note(relative, stat)
      yield* header({ name: relative, type: '2', mode: 0o777, link: readlinkSync(path), modified })
    } else if (stat.isFile()) yield* this.#file(path, relative, stat)
  }

  /** Writes as many bytes as the header says, even if the file changes meanwhile. */
  *#file(path: string, relative: string, seen: BigIntStats, follow = O_NOFOLLOW): Generator<Buffer> {
    const fd = openSync(path, O_RDONLY | O_NONBLOCK | follow)
    try {
      const stat = fstatSync(fd, { bigint: true })
      if (!stat.isFile() || stat.ino !== seen.ino) return
      this.#note(relative, stat)
      const size = Number(stat.size)
      this.#bytes += size
      if (this.#bytes > MAX_COPY_BYTES) throw this.#tooMuch()
      const modified = Number(stat.mtimeMs / 1000n)
      yield* header({ name: relative, type: '0', mode: Number(stat.mode) & 0o777, size, modified })
      for (let at = 0; at < size; ) {
        const piece = Buffer.alloc(Math.min(PIECE, size - at))
        const got = readSync(fd, piece, 0, piece.length, at)
        at += piece.length
        if (got < piece.length) piece.fill(0, got)
        yield piece
      }
      yield padding(size)
    } finally {
      closeSync(fd)
    }
  }

  #note(relative: string, stat: BigIntStats): void {
    const kind = stat.isDirectory() ? 'dir' : stat.isFile() ? 'file' : 'link'
    this.manifest.set(relative, { kind, ino: stat.ino, size: stat.size, ctimeNs: stat.ctimeNs })
    if (this.manifest.size > MAX_FILES) throw this.#tooMuch()
  }

  #isMasked(stat: BigIntStats): boolean {
    return this.#masks.some(({ dev, ino }) => String(stat.dev) === dev && String(stat.ino) === ino)
  }

  #mayRead(stat: BigIntStats): boolean {
    const reader = this.#reader
    if (!reader || stat.isSymbolicLink()) return true
    const shift = stat.uid === BigInt(reader.uid) ? 6 : stat.gid === BigInt(reader.gid) ? 3 : 0
    const wanted = stat.isDirectory() ? 5 : 4
    return ((Number(stat.mode) >> shift) & wanted) === wanted
  }

  #tooMuch(): SandboxError {
    return new SandboxError(
      'resource-limit-exceeded',
      `\`${this.#mount.real}\` is too large to copy into the sandbox`,
      {
        hint: 'mount a smaller directory, or build an image: ringfence image build',
      },
    )
  }
}
