import { chmodSync, closeSync, openSync, readdirSync, rmSync, statfsSync, truncateSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { run } from '../../../host/process/run.ts'
import { systemProgram } from '../../../host/system.ts'
import { SandboxError } from '../../../model/errors.ts'

/** The apparent size of every disk, so that all fit one template; the file system on it is as large as the limit. */
const APPARENT_BYTES = 64 * 1024 ** 3
/** A temporary disk needs no journal. Larger inodes are kept for timestamps in nanoseconds, which detect changes. */
const FEATURES = '^has_journal,^resize_inode,^metadata_csum,uninit_bg'

/** Creates an empty disk without a file system, for a machine without mounts. */
export function makeBareDisk(path: string): void {
  // The directory's permissions protect the file; the emulator's user can reach it only through an open descriptor.
  closeSync(openSync(path, 'wx', 0o644))
  truncateSync(path, APPARENT_BYTES)
}

/** Writes a read-only file system with the files of a directory to a disk; all of them belong to one user. */
export async function fillDisk(path: string, tree: string, id: number): Promise<void> {
  const program = systemProgram('mkfs.erofs')
  if (!program)
    throw new SandboxError('backend-unavailable', 'large inputs need mkfs.erofs', {
      hint: 'apt-get install erofs-utils',
    })
  const owner = [`--force-uid=${id}`, `--force-gid=${id}`]
  const args = ['--quiet', '-x-1', ...owner, '--preserve-mtime', path, tree]
  const env = { PATH: '/usr/bin:/bin' }
  const result = await run({ file: program, args, env, cwd: '/', control: false }, { wallMs: 600_000 })
  const errorText = Buffer.from(result.stderr).toString('utf8').trim().split('\n').at(-1)
  if (/no space left/i.test(errorText ?? '')) throw diskFull(dirname(path))
  if (result.exit.code !== 0)
    throw new SandboxError('launch-failed', `the input image could not be created: ${errorText}`)
  // The same size as the drive that the machine was started with.
  truncateSync(path, APPARENT_BYTES)
}

/** Creates an empty file system on a disk. SECURITY: once a guest wrote to it, the host never mounts or reads it. */
export async function formatDisk(path: string, megabytes: number): Promise<void> {
  const program = systemProgram('mke2fs')
  if (!program)
    throw new SandboxError('backend-unavailable', 'disks need mke2fs', { hint: 'apt-get install e2fsprogs' })
  const options = ['-q', '-F', '-t', 'ext4', '-O', FEATURES, '-m', '0', '-i', '32768', '-I', '256']
  const args = [...options, '-E', 'lazy_itable_init=1,nodiscard', path, `${Math.max(megabytes, 16)}m`]
  const env = { PATH: '/usr/sbin:/usr/bin', MKE2FS_CONFIG: '/dev/null' }
  const result = await run({ file: program, args, env, cwd: '/', control: false }, { wallMs: 60_000 })
  if (result.exit.code === 0) return
  rmSync(path, { force: true })
  const errorText = Buffer.from(result.stderr).toString('utf8').trim().split('\n').at(-1)
  if (/no space left|short write/i.test(errorText ?? '')) throw diskFull(dirname(path))
  throw new SandboxError('launch-failed', `the machine's disk could not be created: ${errorText}`)
}

/** The error for a machine that does not fit on the host's disk. */
const diskFull = (dir: string): SandboxError =>
  new SandboxError('resource-exhausted', `the disk under \`${dir}\` is full`, {
    hint: 'free some space there, or keep fewer machines ready: [backends] ready',
  })

/** Translates ENOSPC; passes any other error through. */
export const explained = (error: unknown, dir: string): unknown =>
  (error as NodeJS.ErrnoException | undefined)?.code === 'ENOSPC' ? diskFull(dir) : error

/** SECURITY: a write to a mapped file on a full disk kills the process with SIGBUS, so the space is checked first. */
export function assertRoom(dir: string, megabytes: number): void {
  const { bavail, bsize } = statfsSync(dir)
  if ((bavail * bsize) / (1024 * 1024) < megabytes) throw diskFull(dir)
}

/** Without root, directories without write permission must be made writable before their entries can be removed. */
export function removeTree(tree: string): void {
  const open = (dir: string): void => {
    chmodSync(dir, 0o700)
    for (const entry of readdirSync(dir, { withFileTypes: true }))
      if (entry.isDirectory()) open(join(dir, entry.name))
  }
  try {
    open(tree)
  } catch {
    // Another process removes it too.
  }
  rmSync(tree, { recursive: true, force: true })
}
