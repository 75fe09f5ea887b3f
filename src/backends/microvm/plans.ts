import { createHash } from 'node:crypto'
import { SandboxError } from '../../model/errors.ts'
import { isWithin } from '../../model/files/path.ts'
import type { Mount, Plan } from '../../model/plan.ts'

/** Which plans a machine can fulfil. Pure. */

/** Whether the plan contains nothing of the host, so that the sandbox can be created in advance. */
export const isAlone = (plan: Plan): boolean =>
  plan.files.length === 0 && plan.mounts.every(({ target }) => plan.own.includes(target))

/** INVARIANT: the whole plan except the host paths of its private directories, which no machine ever sees. */
export const kindOfPlan = (plan: Plan): string =>
  createHash('sha256')
    .update(
      JSON.stringify({ ...plan, mounts: plan.mounts.map(({ target, mode, kind }) => [target, mode, kind]) }),
    )
    .digest('hex')

/** SECURITY: a plan that a machine cannot fulfil is rejected, never weakened. */
export function refuseUnkept(plan: Plan): void {
  if (plan.unixSockets.length > 0)
    throw new SandboxError('unsupported', 'microvm cannot mount unix sockets of the host', {
      hint: 'leave out --unix-socket, or use bubblewrap',
    })
  const file = plan.mounts.find(({ kind, mode }) => kind !== 'dir' && mode === 'rw')
  if (file)
    throw new SandboxError('unsupported', `microvm cannot copy a single file back: \`${file.target}\``, {
      hint: 'mount its directory, or mount the file read-only',
    })
  const nested = plan.mounts.find((mount) => isInside(mount, plan.mounts))
  if (nested)
    throw new SandboxError(
      'unsupported',
      `microvm cannot mount \`${nested.target}\` writable inside another writable mount`,
      {
        hint: 'mount only the outer directory',
      },
    )
}

/** Mounts are copies, so two writable mounts of the same files would diverge. */
const isInside = (inner: Mount, mounts: readonly Mount[]): boolean =>
  inner.mode === 'rw' &&
  mounts.some((outer) => outer !== inner && outer.mode === 'rw' && isWithin(inner.real, outer.real))
