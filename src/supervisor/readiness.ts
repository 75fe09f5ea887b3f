import { accessSync, closeSync, constants, openSync, statfsSync } from 'node:fs'
import { SandboxError } from '../model/errors.ts'
import type { Store } from '../store/sql.ts'
import type { Supervisor } from './supervisor.ts'

/** Enough for the records of everything that runs, so that its end can be recorded too. */
const LEAST_FREE_BYTES = 16 * 1024 * 1024
const LEAST_FREE_FILES = 1000

/** Rejects work before it starts if there is no disk space for its records. */
export function assertFreeSpace(stateDir: string): void {
  const { bavail, bsize, files, ffree } = statfsSync(stateDir)
  if (bavail * bsize < LEAST_FREE_BYTES)
    throw new SandboxError('store-unwritable', 'less than 16 MiB are free for records', {
      hint: 'free some space; nothing runs without its record',
      retryAfterSecs: 5,
    })
  // PLATFORM: file systems that make inodes as they are needed report none at all.
  if (files > 0 && ffree < LEAST_FREE_FILES)
    throw new SandboxError('store-unwritable', `fewer than ${LEAST_FREE_FILES} files can be created`, {
      hint: 'remove files; nothing runs without its record',
      retryAfterSecs: 5,
    })
}

/** Why the server cannot work right now: found by trying, so that a recovery shows at once. */
export async function readinessProblems(
  stateDir: string,
  store: Store,
  supervisor: Pick<Supervisor, 'draining'>,
): Promise<readonly string[]> {
  const problems: string[] = []
  if (supervisor.draining) problems.push('the server is shutting down')
  const attempt = async (what: string, work: () => unknown): Promise<void> => {
    try {
      await work()
    } catch (error) {
      const code = error instanceof SandboxError ? undefined : (error as NodeJS.ErrnoException).code
      problems.push(`${what}: ${code ?? (error as Error).message}`)
    }
  }
  await attempt('the state directory cannot be written', () => accessSync(stateDir, constants.W_OK))
  await attempt('no file can be opened', () => closeSync(openSync('/dev/null', 'r')))
  await attempt('the disk', () => assertFreeSpace(stateDir))
  await attempt('the store cannot be written', () => store.write((tx) => tx.run('SELECT 1 AS one')))
  return problems
}
