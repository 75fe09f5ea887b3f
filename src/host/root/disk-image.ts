import { randomBytes } from 'node:crypto'
import { chmodSync, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { SandboxError } from '../../model/errors.ts'
import { run } from '../process/run.ts'
import { systemProgram } from '../system.ts'

/** The disks of sandboxes: sparse files with an ext4 file system, which take space as they are filled. */

const MB = 1024 * 1024
/** What the file system needs for itself: a fiftieth, and some for its tables. */
const sizeOf = (mb: number): number => sizeOfDisk(mb) * MB
/** The size of a disk on which this much fits, in MB. */
export const sizeOfDisk = (mb: number): number => Math.ceil(mb * 1.02 + 8)
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

const COPY_MS = 10 * 60_000

/** Copies a disk; what is empty takes no space. The disk must not be written meanwhile. */
export async function copyDisk(from: string, to: string): Promise<void> {
  const args = ['--sparse=always', '--reflink=auto', '--no-preserve=all', '--', from, to]
  const launch = { file: systemProgram('cp') ?? 'cp', args, env: {}, cwd: '/', control: false }
  const { exit, stderr } = await run(launch, { wallMs: COPY_MS })
  if (exit.code === 0) return chmodSync(to, 0o600)
  rmSync(to, { force: true })
  const said = Buffer.from(stderr).toString('utf8').trim().split('\n')[0] ?? ''
  throw new SandboxError('launch-failed', `cannot copy the disk of a sandbox: ${said}`)
}

/** Writes to disk what the kernel still holds of every file system, so that a disk that stands still can be copied. */
export async function flushDisks(): Promise<void> {
  const launch = { file: systemProgram('sync') ?? 'sync', args: [], env: {}, cwd: '/', control: false }
  await run(launch, { wallMs: COPY_MS })
}

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
    this.#prepare(mb)
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
