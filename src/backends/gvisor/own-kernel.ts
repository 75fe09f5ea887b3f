import { readdirSync, statSync } from 'node:fs'
import { readText } from '../../host/system.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Guarantee } from '../../model/guarantee.ts'
import type { Plan } from '../../model/plan.ts'

/** The properties of gVisor, whether we start `runsc` or an engine uses it as its runtime. */

/**
 * SECURITY: without `fs.protect` and `limit.disk`: both need seccomp notifications, which gVisor's kernel does not have.
 * Without `limit.cpu`: a cgroup of root enforces it, but time inside is gVisor's own and no attack test could show it.
 * A plan that needs one of them is rejected.
 */
export const OWN_KERNEL_CLAIMS: readonly Guarantee[] = [
  'fs.read',
  'fs.write',
  'env.clean',
  'net.offline',
  'net.loopback',
  'net.fetch',
  'secrets.outside',
  'proc.hidden',
  'ipc.private',
  'kernel.filtered',
  'kernel.separate',
  'limit.wall',
  'limit.idle',
  'limit.memory',
  'limit.pids',
  'limit.output',
  'cleanup',
]

/**
 * gVisor's kernel is in the same cgroup as the processes in it; without a cgroup its memory is watched (memory-watch.ts). The
 * agent counts the memory of processes; what the kernel allocates for them (socket buffers, pipes, file names) is bounded
 * only by that, so this allowance is how far they can exceed the limit. Measured with the build of December 2022: 17 MB after the start, 75 MB after a walk over 130,000
 * files; with a limit of 100 MB, 162 MB of socket buffers are possible.
 */
export const KERNEL_MB = 96

/** Rejects what this kernel cannot guarantee; the registry does too, but a directly opened sandbox must not be weaker. */
export function refuseUnkept(plan: Plan): void {
  const unkept = plan.needs.filter((name) => name === 'fs.protect' || name === 'limit.disk')
  if (unkept.length > 0 || plan.unixSockets.length > 0)
    throw new SandboxError(
      'missing-guarantee',
      unkept.length > 0
        ? `gvisor cannot guarantee: ${unkept.join(', ')}`
        : 'gvisor cannot mount unix sockets of the host',
      { hint: unkept.map((name) => `--waive ${name}`).join(' ') || 'leave out --unix-socket' },
    )
}

/** The isolation layers of a gVisor sandbox. */
export const ownKernelLayers = (status: ReadonlyMap<string, string>): readonly string[] => [
  'gvisor',
  ...(status.get('Seccomp') === '2' ? ['seccomp'] : []),
  ...(/^0+$/.test(status.get('CapEff') ?? '') ? ['no-capabilities'] : []),
]

/**
 * SECURITY: runsc mounts by path. Its file server must serve the inodes that the policy checked; inside the sandbox inode
 * numbers differ, so they are verified from here, before the agent gets its configuration.
 */
export function assertServed(gofer: number | undefined, plan: Plan): void {
  if (gofer === undefined)
    throw new SandboxError('launch-failed', 'the file server (gofer) of gvisor was not found')
  for (const { target, dev, ino } of plan.mounts) {
    const seen = statSync(`/proc/${gofer}/root${target}`, { bigint: true, throwIfNoEntry: false })
    if (String(seen?.dev) !== dev || String(seen?.ino) !== ino)
      throw new SandboxError('launch-failed', `${target} was replaced after the policy check`)
  }
}

/** The pid of a container's file server (gofer), by the container's name. */
export function goferOf(container: string): number | undefined {
  const isGofer = (pid: string): boolean => {
    const words = (readText(`/proc/${pid}/cmdline`) ?? '').split('\0')
    return words.includes('gofer') && words.some((word) => word.endsWith(`/${container}`))
  }
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && isGofer(name))
    .map(Number)[0]
}
