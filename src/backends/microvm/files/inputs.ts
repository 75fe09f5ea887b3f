import { lstatSync, mkdirSync, mkdtempSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { SANDBOX_UID } from '../../../host/guest/protocol.ts'
import { startProcess } from '../../../host/process/run.ts'
import { systemProgram } from '../../../host/system.ts'
import { SandboxError } from '../../../model/errors.ts'
import type { Mount } from '../../../model/plan.ts'
import type { CopyIn } from '../../copy-in.ts'
import { explained, fillDisk, removeTree } from './disk.ts'

/** Above either limit, an emulated guest takes too long to unpack the files one by one. */
const LARGE = { bytes: 64 * 1024 * 1024, files: 4096 }

/**
 * Whether a mount is passed as an image. This selects only the transport: the same copy code checks the files either way,
 * so nothing depends on what is seen here.
 */
export function isLarge(mount: Mount, most = LARGE): boolean {
  if (mount.mode !== 'ro' || mount.kind !== 'dir') return false
  const seen = { bytes: 0, files: 0 }
  const dirs: string[] = [mount.real]
  for (let dir = dirs.pop(); dir !== undefined; dir = dirs.pop()) {
    for (const entry of entriesOf(dir)) {
      seen.files++
      if (entry.isDirectory()) dirs.push(join(dir, entry.name))
      else if (entry.isFile()) seen.bytes += sizeOf(join(dir, entry.name))
      if (seen.bytes > most.bytes || seen.files > most.files) return true
    }
  }
  return false
}

const entriesOf = (dir: string) => {
  try {
    return readdirSync(dir, { withFileTypes: true })
  } catch {
    return []
  }
}

const sizeOf = (path: string): number => lstatSync(path, { throwIfNoEntry: false })?.size ?? 0

/**
 * Writes large inputs into one image: a directory per mount, named by its number. SECURITY: the files pass the same checks
 * as a copy over the channel; the host builds the image from its own copy and never reads it again.
 */
export async function makeInputs(
  path: string,
  copies: ReadonlyMap<number, CopyIn>,
  owner = SANDBOX_UID,
): Promise<void> {
  if (copies.size === 0) return
  const tree = mkdtempSync(join(dirname(path), 'inputs-'))
  try {
    for (const [number, copy] of copies) {
      const dir = join(tree, String(number))
      mkdirSync(dir, { mode: 0o755 })
      await unpack(dir, copy.stream())
    }
    await fillDisk(path, tree, owner)
  } catch (error) {
    throw explained(error, dirname(path))
  } finally {
    removeTree(tree)
  }
}

async function unpack(dir: string, tar: Iterable<Uint8Array>): Promise<void> {
  const program = systemProgram('tar')
  if (!program)
    throw new SandboxError('backend-unavailable', 'large inputs need tar', { hint: 'apt-get install tar' })
  const args = ['-x', '-p', '--no-same-owner', '-C', dir]
  const launch = { file: program, args, env: { PATH: '/usr/bin:/bin' }, cwd: '/', control: false }
  const running = startProcess(launch, { wallMs: 600_000 }, { stdin: 'pipe' })
  try {
    for (const piece of tar) await running.write(piece)
  } catch (error) {
    running.signal('SIGKILL')
    await running.result
    throw error
  }
  running.endInput()
  const { exit, stderr } = await running.result
  if (exit.code === 0) return
  const errorText = Buffer.from(stderr).toString('utf8').trim().split('\n')[0]
  throw /no space left/i.test(errorText ?? '')
    ? Object.assign(new Error(errorText), { code: 'ENOSPC' })
    : new SandboxError('launch-failed', `the inputs could not be copied: ${errorText}`)
}
