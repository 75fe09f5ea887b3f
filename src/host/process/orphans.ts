import { randomBytes } from 'node:crypto'
import { readdirSync, readFileSync, readlinkSync, rmdirSync } from 'node:fs'
import { join } from 'node:path'
import { OWNER_PREFIX } from '../guest/protocol.ts'
import { isAlive, processKey, readText } from '../system.ts'
import type { CgroupHost } from './cgroup.ts'

/**
 * The name of a cgroup identifies its owner after a crash: `ringfence-<pid namespace>-<pid>-<start>-…`. A pid with its
 * start time is unique.
 */
const NAME = /^ringfence-(\d+)-(\d+)-(\d+)-[0-9a-f]{16}$/

let own: string | undefined

/** Creates a unique cgroup name for this process. */
export function groupName(): string {
  own ??= `${pidSpace()}-${process.pid}-${startOf(process.pid) ?? 0}`
  return `ringfence-${own}-${randomBytes(8).toString('hex')}`
}

/**
 * Removes the cgroups of processes that have exited. SECURITY: only by the owner's full name, never by prefix: groups of
 * other instances and of other pid namespaces are left alone. A group that still contains processes stays.
 */
export function removeOrphanGroups(host: CgroupHost): number {
  const space = pidSpace()
  const orphans = [...new Set(Object.values(host.parents))].flatMap((parent) =>
    namesIn(parent)
      .filter((name) => isOrphan(name, space))
      .map((name) => join(parent, name)),
  )
  return orphans.filter(removeTree).length
}

/** The name that the launcher gives to bubblewrap (guest/agent/launch). */
const PROCESS = new RegExp(`^${OWNER_PREFIX}-(\\d+)-(\\d+)-(\\d+)$`)

/**
 * Kills orphaned processes: bubblewrap hangs forever if its parent exits between fork and prctl(PR_SET_PDEATHSIG). They
 * are found by the owner in their name, and killed only if that owner has exited, or the process that leads their group: that is
 * the parent, which holds nothing back that could end them.
 */
export function endOrphanProcesses(): number {
  const space = pidSpace()
  const orphans = readdirSync('/proc').filter((pid) => {
    if (!/^\d+$/.test(pid)) return false
    const [, itsSpace, owner, start] = PROCESS.exec(programOf(pid)) ?? []
    if (owner === undefined || itsSpace !== space) return false
    return startOf(Number(owner)) !== start || hasLostLeader(pid)
  })
  for (const pid of orphans) endProcess(Number(pid))
  return orphans.length
}

/** INVARIANT: the number of a group is not used again while the group has a member. */
function hasLostLeader(pid: string): boolean {
  const group = fieldsOf(pid)?.[2]
  const state = group && group !== '0' ? fieldsOf(group)?.[0] : 'unknown'
  return state === undefined || state === 'Z' || state === 'X'
}

function programOf(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0')[0] ?? ''
  } catch {
    return ''
  }
}

function endProcess(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL')
  } catch {
    // Already exited, or another user's process.
  }
}

function isOrphan(name: string, space: string): boolean {
  const [, itsSpace, pid, start] = NAME.exec(name) ?? []
  return pid !== undefined && itsSpace === space && startOf(Number(pid)) !== start
}

function removeTree(dir: string): boolean {
  try {
    for (const name of namesIn(dir)) rmdirSync(join(dir, name))
    rmdirSync(dir)
    return true
  } catch {
    return false
  }
}

function namesIn(dir: string): string[] {
  try {
    return readdirSync(dir, { withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .map(({ name }) => name)
  } catch {
    return []
  }
}

const startOf = (pid: number): string | undefined => fieldsOf(pid)?.[19]

/** What the kernel says of a process, from its state on; undefined if it has exited. */
function fieldsOf(pid: number | string): readonly string[] | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  } catch {
    return undefined
  }
}

const pidSpace = (): string => /\d+/.exec(readlinkSync('/proc/self/ns/pid'))?.[0] ?? '0'

/** Identifies this process, so that others can tell whether it still runs: boot id, pid namespace, pid and start time. */
export const ownEpoch = (): string => `${bootId()}.${pidSpace()}.${processKey(process.pid)}`

/**
 * Whether the process that an epoch names has certainly exited.
 * SECURITY: processes of another pid namespace of this boot are not visible from here, so they are left alone.
 */
export function isOver(epoch: string | undefined): boolean {
  const [boot, space, key] = epoch?.split('.') ?? []
  if (boot !== bootId()) return true
  return space === pidSpace() && !isAlive(key)
}

const bootId = (): string =>
  (readText('/proc/sys/kernel/random/boot_id') ?? '').replaceAll('-', '').slice(0, 16)
