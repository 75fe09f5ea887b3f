import { SandboxError } from '../../model/errors.ts'
import type { Mount, Plan } from '../../model/plan.ts'
import type { GuestFiles } from '../backend.ts'
import { CopyIn } from '../copy-in.ts'

/** More than this is not sent to another machine by accident. */
const MAX_BYTES = 256 * 1024 * 1024

/**
 * Somebody else's machine cannot mount ours. What is granted for reading is copied there; a grant to write would have to
 * come back, and is refused, so that nobody waits for changes that never arrive.
 */
export function refuseUnsendable(plan: Plan, backend: string): void {
  const written = plan.mounts.find((mount) => mount.mode === 'rw')
  if (written)
    throw new SandboxError(
      'unsupported',
      `${backend} runs elsewhere and cannot write to \`${written.target}\``,
      {
        hint: 'grant it for reading (--preset read-only), and take results from the sandbox with its files',
      },
    )
  if (plan.unixSockets.length > 0)
    throw new SandboxError('unsupported', `${backend} runs elsewhere and cannot reach a socket of this host`)
}

/** Brings what the plan grants into the sandbox, at the same paths. */
export async function sendMounts(plan: Plan, files: GuestFiles): Promise<void> {
  for (const mount of plan.mounts) {
    const into = mount.kind === 'dir' ? mount.target : mount.target.replace(/\/[^/]+$/, '') || '/'
    await files.makeDir(into).catch((error: unknown) => {
      if (!(error instanceof SandboxError && error.code === 'file-exists')) throw error
    })
    await files.unpack(into, bounded(mount, new CopyIn(plan, mount).stream()))
  }
  for (const { target, text } of plan.files) await files.write(target, [Buffer.from(text)])
}

function* bounded({ real }: Mount, archive: Iterable<Uint8Array>): Generator<Uint8Array> {
  let size = 0
  for (const chunk of archive) {
    size += chunk.length
    if (size > MAX_BYTES)
      throw new SandboxError('too-large', `\`${real}\` is more than 256 MiB and is not sent elsewhere`, {
        hint: 'grant a smaller directory',
      })
    yield chunk
  }
}
