import { readlinkSync, writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { SandboxError } from '../../model/errors.ts'

const TRIES = 2000
const PAUSE_MS = 5

/** The user namespace of a process; undefined if it is not visible. */
export function userNamespaceOf(pid: number): string | undefined {
  try {
    return readlinkSync(`/proc/${pid}/ns/user`)
  } catch {
    return undefined
  }
}

/**
 * Waits until a process has entered a user namespace of its own, and makes id 0 of the namespace above its id 0. PLATFORM: the
 * kernel lets no process do that for itself unless it had a capability before.
 */
export async function mapRootUser(pid: number, before: string): Promise<void> {
  try {
    for (let tries = 0; userNamespaceOf(pid) === before; tries++) {
      if (tries === TRIES) throw new Error('it was not created in time')
      await sleep(PAUSE_MS)
    }
    writeFileSync(`/proc/${pid}/setgroups`, 'deny')
    writeFileSync(`/proc/${pid}/gid_map`, '0 0 1')
    writeFileSync(`/proc/${pid}/uid_map`, '0 0 1')
  } catch (cause) {
    const why = (cause as Error).message
    throw new SandboxError('launch-failed', `the user namespace of the sandbox: ${why}`, { cause })
  }
}
