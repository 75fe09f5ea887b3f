import { readdirSync, statSync } from 'node:fs'
import { readText } from '../../host/system.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Guarantee } from '../../model/guarantee.ts'
import type { Plan } from '../../model/plan.ts'

/** What gVisor is like, whoever starts it: `runsc` by us, or an engine with `runsc` as its runtime. */

/**
 * SECURITY: not `fs.protect` and not `limit.disk`: both need the kernel to pass calls up to the agent, and gVisor's does not.
 * Not `limit.cpu`: as root a control group holds it, but time inside is gVisor's own and no attack could show it.
 * A plan that needs one of them is refused.
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
 * gVisor's own kernel lives in the same cgroup as what runs in it. The agent counts the memory of processes; what the kernel holds for
 * them (socket buffers, pipes, names of files) only this cgroup bounds, so what is added here is what they can have beyond the limit.
 * Measured with the build of December 2022: 17 MB after the start, 75 MB after a walk over 130,000 files; a limit of 100 MB then lets
 * 162 MB of socket buffers through.
 */
export const KERNEL_MB = 96

/** What this kernel cannot keep; the registry refuses it too, and a sandbox opened by hand must not be weaker. */
export function refuseUnkept(plan: Plan): void {
  const unkept = plan.needs.filter((name) => name === 'fs.protect' || name === 'limit.disk')
  if (unkept.length > 0 || plan.unixSockets.length > 0)
    throw new SandboxError(
      'missing-guarantee',
      unkept.length > 0
        ? `gvisor cannot keep: ${unkept.join(', ')}`
        : 'gvisor cannot pass sockets of the host in',
      { hint: unkept.map((name) => `--waive ${name}`).join(' ') || 'leave out --unix-socket' },
    )
}

export const ownKernelLayers = (status: ReadonlyMap<string, string>): readonly string[] => [
  'gvisor',
  ...(status.get('Seccomp') === '2' ? ['seccomp'] : []),
  ...(/^0+$/.test(status.get('CapEff') ?? '') ? ['no-capabilities'] : []),
]

/**
 * SECURITY: runsc mounts by path. What its file server shows must be the very things that policy judged; inside, inodes have
 * other numbers, so we look from here, before the agent gets its first word.
 */
export function assertServed(gofer: number | undefined, plan: Plan): void {
  if (gofer === undefined)
    throw new SandboxError('launch-failed', 'the file server of gvisor cannot be found')
  for (const { target, dev, ino } of plan.mounts) {
    const seen = statSync(`/proc/${gofer}/root${target}`, { bigint: true, throwIfNoEntry: false })
    if (String(seen?.dev) !== dev || String(seen?.ino) !== ino)
      throw new SandboxError('launch-failed', `${target} is no longer what policy judged: it was replaced`)
  }
}

/** The file server of a container, by the container's name. */
export function goferOf(container: string): number | undefined {
  const isGofer = (pid: string): boolean => {
    const words = (readText(`/proc/${pid}/cmdline`) ?? '').split('\0')
    return words.includes('gofer') && words.some((word) => word.endsWith(`/${container}`))
  }
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && isGofer(name))
    .map(Number)[0]
}
