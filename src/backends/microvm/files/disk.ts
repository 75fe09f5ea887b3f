import { chmodSync, closeSync, openSync, readdirSync, rmSync, statfsSync, truncateSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { SANDBOX_UID } from '../../../host/guest/protocol.ts'
import { run } from '../../../host/process/run.ts'
import { systemProgram } from '../../../host/system.ts'
import { SandboxError } from '../../../model/errors.ts'

/** Every disk looks this large, so that all fit one template; the file system on it is as large as the limit. */
const APPARENT_BYTES = 64 * 1024 ** 3
/** Nothing needs a journal that is gone after its first crash. Times in nanoseconds tell what changed, and need the room. */
const FEATURES = '^has_journal,^resize_inode,^metadata_csum,uninit_bg'

/** A disk with nothing on it, not even a file system: all that a machine without mounts needs. */
export function makeBareDisk(path: string): void {
  // Whoever may enter its directory may read it; the emulator's user gets no other way to it than an open descriptor.
  closeSync(openSync(path, 'wx', 0o644))
  truncateSync(path, APPARENT_BYTES)
}

/** Puts a read-only file system with the files of a directory onto a bare one; they all belong to the guest's user. */
export async function fillDisk(path: string, tree: string): Promise<void> {
  const program = systemProgram('mkfs.erofs')
  if (!program)
    throw new SandboxError('backend-unavailable', 'large inputs need mkfs.erofs', {
      hint: 'apt-get install erofs-utils',
    })
  const owner = [`--force-uid=${SANDBOX_UID}`, `--force-gid=${SANDBOX_UID}`]
  const args = ['--quiet', '-x-1', ...owner, '--preserve-mtime', path, tree]
  const env = { PATH: '/usr/bin:/bin' }
  const result = await run({ file: program, args, env, cwd: '/', control: false }, { wallMs: 600_000 })
  const said = Buffer.from(result.stderr).toString('utf8').trim().split('\n').at(-1)
  if (/no space left/i.test(said ?? '')) throw diskFull(dirname(path))
  if (result.exit.code !== 0)
    throw new SandboxError('launch-failed', `the image of the inputs could not be made: ${said}`)
  // As large as the drive that the machine was started with.
  truncateSync(path, APPARENT_BYTES)
}

/** Puts an empty file system onto it. SECURITY: once a guest wrote to it, the host never mounts or reads it. */
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
  const said = Buffer.from(result.stderr).toString('utf8').trim().split('\n').at(-1)
  if (/no space left|short write/i.test(said ?? '')) throw diskFull(dirname(path))
  throw new SandboxError('launch-failed', `the machine's disk could not be made: ${said}`)
}

/** What whoever waits for a machine is told where there is no room for it. */
const diskFull = (dir: string): SandboxError =>
  new SandboxError('resource-exhausted', `the disk under \`${dir}\` is full`, {
    hint: 'free some space there, or keep fewer machines ready: [backends] ready',
  })

/** Passes any other error through. */
export const explained = (error: unknown, dir: string): unknown =>
  (error as NodeJS.ErrnoException | undefined)?.code === 'ENOSPC' ? diskFull(dir) : error

/** SECURITY: a file that is mapped and does not fit ends whoever writes to it; so it is asked for beforehand. */
export function assertRoom(dir: string, megabytes: number): void {
  const { bavail, bsize } = statfsSync(dir)
  if ((bavail * bsize) / (1024 * 1024) < megabytes) throw diskFull(dir)
}

/** A directory that nobody may write to cannot be emptied either, unless we are root. */
export function removeTree(tree: string): void {
  const open = (dir: string): void => {
    chmodSync(dir, 0o700)
    for (const entry of readdirSync(dir, { withFileTypes: true }))
      if (entry.isDirectory()) open(join(dir, entry.name))
  }
  try {
    open(tree)
  } catch {
    // Somebody else removes it as well.
  }
  rmSync(tree, { recursive: true, force: true })
}
