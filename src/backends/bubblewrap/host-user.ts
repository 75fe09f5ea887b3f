import { randomInt } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { Plan } from '../../model/plan.ts'

/** PLATFORM: systemd's list of user ids leaves this range unused. */
const FIRST = 1_900_000_000
const COUNT = 1 << 24
const NOBODY = 65_534

/**
 * The user of a sandbox's processes on the host. SECURITY: the kernel counts inotify instances, watches and pipe buffers per user, so sandboxes
 * of nobody get a user each: otherwise one of them could leave nothing to the others.
 */
export const hostUserOf = ({ runAs }: Pick<Plan, 'runAs'>): Plan['runAs'] =>
  runAs?.uid === NOBODY && everyUserExists() ? newUser() : runAs

function newUser(): Plan['runAs'] {
  const id = FIRST + randomInt(COUNT)
  return { uid: id, gid: id }
}

/** Root of a user namespace, as in a container, may have only some users. */
function everyUserExists(): boolean {
  try {
    return ['uid_map', 'gid_map'].every((map) =>
      /^\s*0\s+0\s+4294967295\s*$/.test(readFileSync(`/proc/self/${map}`, 'utf8')),
    )
  } catch {
    return false
  }
}
