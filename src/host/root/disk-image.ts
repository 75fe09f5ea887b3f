import { randomBytes } from 'node:crypto'
import { chmodSync, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
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
const SPARE_MS = 100

/** Writes what is in memory of the file system at this path to its disk. */
export const syncDisk = (path: string): Promise<void> => program('sync', ['-f', path], 'write a disk')

/** Copies a disk without its empty space; a file system that can shares the blocks. */
export async function copyDisk(from: string, to: string): Promise<void> {
  await program('cp', ['--sparse=always', '--reflink=auto', '--', from, to], 'copy a disk')
  chmodSync(to, 0o600)
}

/** Bytes that a disk of this size takes at most. */
export const mostBytes = (mb: number): number => sizeOf(mb)

/** Creates disks, and keeps one of the last size ready. */
export class DiskImages {
  readonly #dir: string
  readonly #owner: number
  #spare: { readonly mb: number; readonly path: Promise<string | undefined> } | undefined

  constructor(dir: string, owner: number) {
    this.#dir = dir
    this.#owner = owner
  }

  /** Creates a disk of this size at this path. */
  async create(path: string, mb: number): Promise<void> {
    const spare = this.#spare
    this.#spare = undefined
    const ready = spare?.mb === mb ? await spare.path : undefined
    if (ready === undefined) await format(path, mb, this.#owner)
    else renameSync(ready, path)
    if (ready === undefined && spare) void spare.path.then((other) => other && rmSync(other, { force: true }))
    chmodSync(path, 0o600)
    // After the sandbox has started: creating a process would delay it.
    setTimeout(() => this.#prepare(mb), SPARE_MS).unref()
  }

  #prepare(mb: number): void {
    if (this.#spare) return
    const path = join(this.#dir, `spare-${randomBytes(6).toString('hex')}`)
    this.#spare = {
      mb,
      path: format(path, mb, this.#owner).then(
        () => path,
        () => undefined,
      ),
    }
  }
}
