import { existsSync, readdirSync, readFileSync } from 'node:fs'

/**
 * A sandbox process that belongs to us or is an orphan; processes of other tests do not count, and neither does the fork
 * server, which belongs to no sandbox.
 */
function isOurOrphan(pid: string): boolean {
  if (!/^\d+$/.test(pid)) return false
  try {
    const [, name, state, parent] =
      /^\d+ \((.*)\) (\S) (\d+)/.exec(readFileSync(`/proc/${pid}/stat`, 'latin1')) ?? []
    const command = readFileSync(`/proc/${pid}/cmdline`, 'latin1')
    const isSandbox = name === 'bwrap' || (name === 'ringfence-agent' && !command.includes('fork-server'))
    const isOwn = command.startsWith('ringfence-bwrap-') && command.includes(`-${process.pid}-`)
    return isSandbox && state !== 'Z' && (parent === '1' || Number(parent) === process.pid || isOwn)
  } catch {
    return false
  }
}

/** Whether a cgroup is ours, or belonged to a process that has ended: other tests and servers have theirs at the same time. */
function isLeft(cgroup: string): boolean {
  const [, owner, start] = /ringfence-\d+-(\d+)-(\d+)-[0-9a-f]{16}/.exec(cgroup) ?? []
  return owner !== undefined && (Number(owner) === process.pid || startOf(owner) !== start)
}

function startOf(pid: string): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]
  } catch {
    return undefined
  }
}

/** Counts of everything that a sandbox may leave behind on the host, compared before and after. */
export function leftovers(): Readonly<Record<string, number>> {
  const lines = (file: string): number => readFileSync(file, 'utf8').split('\n').length - 1
  const cgroups = (dir: string): number =>
    existsSync(dir) ? readdirSync(dir, { recursive: true }).filter((name) => isLeft(String(name))).length : 0
  return {
    mounts: lines('/proc/self/mountinfo'),
    cgroups: cgroups('/sys/fs/cgroup/pids') + cgroups('/sys/fs/cgroup/memory'),
    descriptors: readdirSync('/proc/self/fd').length,
    processes: readdirSync('/proc').filter(isOurOrphan).length,
  }
}
