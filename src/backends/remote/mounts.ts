import { SandboxError } from '../../model/errors.ts'
import type { Mount, Plan } from '../../model/plan.ts'
import type { GuestFiles } from '../backend.ts'
import { CopyIn } from '../copy-in.ts'

/** The size limit for uploads, against accidental ones. */
const MAX_BYTES = 256 * 1024 * 1024

/**
 * A remote machine cannot mount host directories. Read-only mounts are copied there; a writable mount would have to be
 * copied back and is rejected, so that no caller waits for changes that never arrive.
 */
export function refuseUnsendable(plan: Plan, backend: string): void {
  const written = plan.mounts.find((mount) => mount.mode === 'rw')
  if (written)
    throw new SandboxError(
      'unsupported',
      `${backend} runs on another machine and cannot write to \`${written.target}\``,
      {
        hint: 'mount it read-only (--preset read-only), and read results with the file operations',
      },
    )
  if (plan.unixSockets.length > 0)
    throw new SandboxError(
      'unsupported',
      `${backend} runs on another machine and cannot reach a socket of this host`,
    )
}

/** Uploads the plan's mounts into the sandbox, at the same paths. */
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

/** An archive that is not larger than what is sent to another machine. */
export function* bounded({ real }: Mount, archive: Iterable<Uint8Array>): Generator<Uint8Array> {
  let size = 0
  for (const chunk of archive) {
    size += chunk.length
    if (size > MAX_BYTES)
      throw new SandboxError(
        'too-large',
        `\`${real}\` is larger than 256 MiB and is not sent to another machine`,
        {
          hint: 'mount a smaller directory',
        },
      )
    yield chunk
  }
}
