import { lstatSync } from 'node:fs'
import { relative } from 'node:path'
import { run } from '../../host/spawn.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Mount, Plan } from '../../model/plan.ts'
import type { GuestFiles } from '../backend.ts'

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
    requireSame(mount)
    const archive = await packed(plan, mount)
    const into =
      mount.kind === 'dir' ? mount.target : mount.target.slice(0, mount.target.lastIndexOf('/')) || '/'
    await files.makeDir(into).catch((error: unknown) => {
      if (!(error instanceof SandboxError && error.code === 'file-exists')) throw error
    })
    await files.unpack(into, [archive])
  }
  for (const { target, text } of plan.files) await files.write(target, [Buffer.from(text)])
}

/** SECURITY: the very thing that was judged, not what stands at its path by now. */
function requireSame({ real, dev, ino }: Mount): void {
  const now = lstatSync(real, { bigint: true, throwIfNoEntry: false })
  if (String(now?.dev) !== dev || String(now?.ino) !== ino)
    throw new SandboxError('path-traversal', `\`${real}\` is not what it was when it was judged`)
}

/** SECURITY: what the plan hides stays here. */
async function packed(plan: Plan, { real, kind }: Mount): Promise<Uint8Array> {
  const hidden = plan.masks
    .filter((mask) => mask.real.startsWith(`${real}/`))
    .map((mask) => `--exclude=./${relative(real, mask.real)}`)
  const [dir, name] =
    kind === 'dir'
      ? [real, '.']
      : [real.slice(0, real.lastIndexOf('/')) || '/', real.slice(real.lastIndexOf('/') + 1)]
  const args = ['-c', '-f', '-', '--anchored', '--no-wildcards', ...hidden, '-C', dir, '--', name]
  const launch = { file: 'tar', args, env: { PATH: '/usr/bin:/bin', LANG: 'C.UTF-8' }, control: false }
  const { exit, stdout, stopped } = await run(launch, { wallMs: 120_000, outputBytes: MAX_BYTES })
  if (stopped === 'output')
    throw new SandboxError(
      'too-large',
      `\`${real}\` is more than ${MAX_BYTES / 1024 / 1024} MiB and is not sent elsewhere`,
      {
        hint: 'grant a smaller directory',
      },
    )
  if (exit.code !== 0) throw new SandboxError('launch-failed', `cannot read all of \`${real}\``)
  return stdout
}
