import { randomBytes } from 'node:crypto'
import {
  chmodSync,
  closeSync,
  ftruncateSync,
  openSync,
  readSync,
  rmSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import { SandboxError } from '../../model/errors.ts'
import { run } from '../process/run.ts'
import { systemProgram } from '../system.ts'

/** The disks of sandboxes: sparse files with an ext4 file system, which take space as they are filled. */

const MB = 1024 * 1024
/** The file system needs a fiftieth of it for itself. */
const sizeOf = (mb: number): number => mb * MB
const WALL_MS = 30_000

/** The program that creates the file system. */
export const formatter = (): string | undefined => systemProgram('mkfs.ext4')

/** Without a journal, because a disk outlives neither a crash of the host nor its sandbox; `owner` owns the root. */
async function format(path: string, mb: number, owner: number): Promise<void> {
  writeFileSync(path, '', { flag: 'wx', mode: 0o600 })
  truncateSync(path, sizeOf(mb))
  const options = ['-O', '^has_journal,^resize_inode', '-m', '0', '-b', '4096', '-i', '16384']
  const extended = `lazy_itable_init=1,nodiscard,root_owner=${owner}:${owner}`
  const { exit, stderr } = await run(
    {
      file: formatter() ?? 'mkfs.ext4',
      args: ['-q', '-F', ...options, '-E', extended, path],
      env: {},
      cwd: '/',
      control: false,
    },
    { wallMs: WALL_MS },
  )
  if (exit.code === 0) return
  rmSync(path, { force: true })
  const said = Buffer.from(stderr).toString('utf8').trim().split('\n')[0] ?? ''
  throw new SandboxError('launch-failed', `cannot create the disk of a sandbox: ${said}`)
}

async function program(name: string, args: readonly string[], what: string): Promise<void> {
  const launch = { file: systemProgram(name) ?? name, args, env: {}, cwd: '/', control: false }
  const { exit, stderr } = await run(launch, { wallMs: COPY_MS })
  if (exit.code === 0) return
  const said = Buffer.from(stderr).toString('utf8').trim().split('\n')[0] ?? ''
  throw new SandboxError('launch-failed', `cannot ${what}: ${said}`)
}
const COPY_MS = 600_000

/** Writes what is in memory of the file system at this path to its disk. */
export const syncDisk = (path: string): Promise<void> => program('sync', ['-f', path], 'write a disk')

/** Copies a disk without its empty space; a file system that can shares the blocks. */
export async function copyDisk(from: string, to: string): Promise<void> {
  await program('cp', ['--sparse=always', '--reflink=auto', '--', from, to], 'copy a disk')
  chmodSync(to, 0o600)
}

/** Bytes that a disk of this size takes at most. */
export const mostBytes = (mb: number): number => sizeOf(mb)

/** Where a sparse file has data. */
type Extent = { readonly at: number; readonly bytes: Buffer }
/** A file system without files, as it is written to a disk; undefined if this host cannot tell data from holes. */
type Template = readonly Extent[] | undefined

/** An empty file system of 10 GiB has 160 KB of data, one of 1 TiB 10 MB. */
const MAX_TEMPLATE = 16 * MB
/** Sizes whose file system is kept in memory. */
const TEMPLATES = 8

/** Creates disks. The formatter is a process of 15 ms, so its result is kept and written to the next disks of the same size. */
export class DiskImages {
  readonly #dir: string
  readonly #owner: number
  readonly #agent: string
  readonly #templates = new Map<number, Promise<Template>>()

  constructor(dir: string, owner: number, agent: string) {
    this.#dir = dir
    this.#owner = owner
    this.#agent = agent
  }

  /** Creates a disk of this size at this path. */
  async create(path: string, mb: number): Promise<void> {
    const template = await this.#template(mb)
    if (template === undefined) await format(path, mb, this.#owner)
    else fill(path, mb, template)
  }

  #template(mb: number): Promise<Template> {
    const known = this.#templates.get(mb)
    if (known) return known
    const made = this.#read(mb)
    this.#templates.set(mb, made)
    made.catch(() => this.#templates.delete(mb))
    const [oldest] = this.#templates.keys()
    if (this.#templates.size > TEMPLATES) this.#templates.delete(oldest as number)
    return made
  }

  async #read(mb: number): Promise<Template> {
    const path = join(this.#dir, `template-${randomBytes(6).toString('hex')}`)
    try {
      await format(path, mb, this.#owner)
      const { exit, stdout } = await run(
        { file: this.#agent, args: ['disk-extents', path], env: {}, control: false },
        { wallMs: WALL_MS },
      )
      return exit.code === 0 ? extentsOf(path, Buffer.from(stdout).toString('latin1')) : undefined
    } finally {
      rmSync(path, { force: true })
    }
  }
}

function extentsOf(path: string, lines: string): Template {
  const ranges = lines
    .split('\n')
    .slice(0, -1)
    .map((line) => line.split(' ').map(Number) as [number, number])
  // A file system without sparse files reports everything as data.
  if (ranges.reduce((sum, [, length]) => sum + length, 0) > MAX_TEMPLATE) return undefined
  const fd = openSync(path, 'r')
  try {
    return ranges.map(([at, length]) => {
      const bytes = Buffer.alloc(length)
      if (readSync(fd, bytes, 0, length, at) !== length) throw new Error('a disk changed while it was read')
      return { at, bytes }
    })
  } finally {
    closeSync(fd)
  }
}

function fill(path: string, mb: number, template: readonly Extent[]): void {
  const fd = openSync(path, 'wx', 0o600)
  try {
    ftruncateSync(fd, sizeOf(mb))
    for (const { at, bytes } of template)
      if (writeSync(fd, bytes, 0, bytes.length, at) !== bytes.length) throw new Error('the disk is full')
  } catch (error) {
    rmSync(path, { force: true })
    throw new SandboxError('launch-failed', 'cannot create the disk of a sandbox', { cause: error })
  } finally {
    closeSync(fd)
  }
}
