import { existsSync, readdirSync, readFileSync } from 'node:fs'

/** A sandbox process that is our child or an orphan; processes of other tests do not count. */
function isOurOrphan(pid: string): boolean {
  if (!/^\d+$/.test(pid)) return false
  try {
    const [, name, state, parent] =
      /^\d+ \((.*)\) (\S) (\d+)/.exec(readFileSync(`/proc/${pid}/stat`, 'latin1')) ?? []
    const ours = name === 'bwrap' || name === 'ringfence-agent'
    return ours && state !== 'Z' && (parent === '1' || Number(parent) === process.pid)
  } catch {
    return false
  }
}

/** Counts of everything that a sandbox may leave behind on the host, compared before and after. */
export function leftovers(): Readonly<Record<string, number>> {
  const lines = (file: string): number => readFileSync(file, 'utf8').split('\n').length - 1
  const cgroups = (dir: string): number =>
    existsSync(dir)
      ? readdirSync(dir, { recursive: true }).filter((name) => String(name).includes('ringfence-')).length
      : 0
  return {
    mounts: lines('/proc/self/mountinfo'),
    cgroups: cgroups('/sys/fs/cgroup/pids') + cgroups('/sys/fs/cgroup/memory'),
    descriptors: readdirSync('/proc/self/fd').length,
    processes: readdirSync('/proc').filter(isOurOrphan).length,
  }
}
