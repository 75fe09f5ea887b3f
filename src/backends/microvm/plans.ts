import { createHash } from 'node:crypto'
import { SandboxError } from '../../model/errors.ts'
import { isWithin } from '../../model/path.ts'
import type { Mount, Plan } from '../../model/plan.ts'

/** What a machine can and cannot do for a plan. Pure. */

/** Nothing of the host's is in it: such a sandbox can be made before anybody asks for it. */
export const isAlone = (plan: Plan): boolean =>
  plan.files.length === 0 && plan.mounts.every(({ target }) => plan.own.includes(target))

/** INVARIANT: the whole plan but where its private directories lie on the host, which no machine ever sees. */
export const kindOfPlan = (plan: Plan): string =>
  createHash('sha256')
    .update(
      JSON.stringify({ ...plan, mounts: plan.mounts.map(({ target, mode, kind }) => [target, mode, kind]) }),
    )
    .digest('hex')

/** SECURITY: what no machine can do is refused by name, never left out. */
export function refuseUnkept(plan: Plan): void {
  if (plan.unixSockets.length > 0)
    throw new SandboxError('unsupported', 'microvm cannot pass sockets of the host in', {
      hint: 'leave out --unix-socket, or use bubblewrap',
    })
  const file = plan.mounts.find(({ kind, mode }) => kind !== 'dir' && mode === 'rw')
  if (file)
    throw new SandboxError('unsupported', `microvm takes no single file back: \`${file.target}\``, {
      hint: 'grant its directory, or the file read-only',
    })
  const nested = plan.mounts.find((mount) => isInside(mount, plan.mounts))
  if (nested)
    throw new SandboxError('unsupported', `microvm copies \`${nested.target}\` only once`, {
      hint: 'grant the outer directory alone',
    })
}

/** A copy has no second name for a file: two writable grants of one place would come apart. */
const isInside = (inner: Mount, mounts: readonly Mount[]): boolean =>
  inner.mode === 'rw' &&
  mounts.some((outer) => outer !== inner && outer.mode === 'rw' && isWithin(inner.real, outer.real))
