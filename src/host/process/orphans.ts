import { randomBytes } from 'node:crypto'
import { readdirSync, readFileSync, readlinkSync, rmdirSync } from 'node:fs'
import { join } from 'node:path'
import { OWNER_PREFIX } from '../guest/protocol.ts'
import { isAlive, lifeOf, readText } from '../system.ts'
import type { CgroupHost } from './cgroup.ts'

/**
 * What a killed process leaves behind says whose it was. A control group's name: `ringfence-<pid namespace>-<pid>-<start>-…`;
 * with its start time a pid is never the same twice.
 */
const NAME = /^ringfence-(\d+)-(\d+)-(\d+)-[0-9a-f]{16}$/

let own: string | undefined

/** A fresh name for a group of this process. */
export function groupName(): string {
  own ??= `${pidSpace()}-${process.pid}-${startOf(process.pid) ?? 0}`
  return `ringfence-${own}-${randomBytes(8).toString('hex')}`
}

/**
 * Removes the groups of processes that are dead. SECURITY: only with the owner's full name, never by prefix: another
 * instance's groups, and those of another pid namespace, are not ours to judge. One that still holds processes stays.
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

/** As the launcher names bubblewrap (guest/agent/launch). */
const PROCESS = new RegExp(`^${OWNER_PREFIX}-(\\d+)-(\\d+)-(\\d+)$`)

/**
 * Ends what the dead left running: bubblewrap waits for ever when its parent dies in the moment of its birth. Found by the
 * owner that it names, and only when that owner is dead.
 */
export function endOrphanProcesses(): number {
  const space = pidSpace()
  const orphans = readdirSync('/proc').filter((pid) => {
    if (!/^\d+$/.test(pid)) return false
    const [, itsSpace, owner, start] = PROCESS.exec(programOf(pid)) ?? []
    return owner !== undefined && itsSpace === space && startOf(Number(owner)) !== start
  })
  for (const pid of orphans) endProcess(Number(pid))
  return orphans.length
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
    // Gone, or another user's.
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

function startOf(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]
  } catch {
    return undefined
  }
}

const pidSpace = (): string => /\d+/.exec(readlinkSync('/proc/self/ns/pid'))?.[0] ?? '0'

/** This process, so that others can tell whether it is still there: the boot, the pid namespace, the life. */
export const ownEpoch = (): string => `${bootId()}.${pidSpace()}.${lifeOf(process.pid)}`

/**
 * Whether the process that an epoch names is dead for certain.
 * SECURITY: what another pid namespace of this boot holds cannot be judged from here, so it is left alone.
 */
export function isOver(epoch: string | undefined): boolean {
  const [boot, space, life] = epoch?.split('.') ?? []
  if (boot !== bootId()) return true
  return space === pidSpace() && !isAlive(life)
}

const bootId = (): string =>
  (readText('/proc/sys/kernel/random/boot_id') ?? '').replaceAll('-', '').slice(0, 16)
