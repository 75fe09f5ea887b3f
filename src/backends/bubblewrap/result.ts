import type { Frame } from '../../host/guest/frames.ts'
import type { Cgroup } from '../../host/process/cgroup.ts'
import { outcomeOf } from '../../host/process/limited-command.ts'
import type { RunResult } from '../../host/process/run.ts'
import { readText } from '../../host/system.ts'
import type { ExecResult, Use, Violation } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { violationsOf } from '../guest-command.ts'
import { layersOf } from './layers.ts'

/** The prefix of every message about a failed setup. */
export const SETUP_FAILED = 'the sandbox could not be set up: '

/** The result of a single command. Throws if the command could not be started. */
export function resultOf(result: RunResult, group: Cgroup | undefined): ExecResult {
  const ready = result.frames.find((frame) => frame.kind === 'ready')
  const error = result.frames.find((frame) => frame.kind === 'error')
  if (!result.stopped && (!ready || error)) throw launchError(error, result)
  const counts = group?.counts() ?? { oomKills: 0, pidsRefused: 0 }
  const exit = result.frames.find((frame) => frame.kind === 'exit')
  const outcome = outcomeOf(result.stopped, exit, counts.oomKills, result.exit.signal ?? undefined)
  return {
    outcome,
    stdout: result.stdout,
    stderr: result.stderr,
    truncated: result.truncated,
    durationMs: result.durationMs,
    violations: violationsOf(toldViolations(result.frames), outcome, counts),
    ...usesOf(result.frames),
    layers: ready?.kind === 'ready' ? layersOf(ready.status, group !== undefined) : [],
  }
}

function launchError(error: Frame | undefined, result: RunResult): SandboxError {
  const said = Buffer.from(result.stderr).toString('utf8').trim().split('\n')[0] ?? ''
  const text =
    error?.kind === 'error'
      ? error.text
      : said || `the launcher ended with ${result.exit.code ?? result.exit.signal}`
  return launchFailure(text)
}

function usesOf(frames: readonly Frame[]): { readonly uses?: readonly Use[] } {
  const uses = frames.flatMap((frame) => (frame.kind === 'use' ? [frame.use] : []))
  return uses.length === 0 ? {} : { uses }
}

const toldViolations = (frames: readonly Frame[]): readonly Violation[] =>
  frames.flatMap((frame) =>
    frame.kind === 'violation' ? [{ guarantee: frame.guarantee, details: frame.details }] : [],
  )

/** The error of a failed setup, with a hint. */
export function launchFailure(text: string): SandboxError {
  const { reason, fix } = diagnose(text)
  return new SandboxError('launch-failed', `${SETUP_FAILED}${reason}`, { hint: fix })
}

/** Translates an error of the kernel or bubblewrap to a reason and a fix. */
function diagnose(text: string): { readonly reason: string; readonly fix: string } {
  const blocked = /new namespace|uid_?map|RTM_NEWADDR|Operation not permitted|No space left/i.test(text)
  if (blocked && readText('/proc/sys/kernel/apparmor_restrict_unprivileged_userns')?.trim() === '1')
    return {
      reason: 'AppArmor blocks user namespaces for this program',
      fix: 'sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or add an AppArmor profile for bwrap',
    }
  if (blocked && readText('/proc/sys/kernel/unprivileged_userns_clone')?.trim() === '0')
    return { reason: 'user namespaces are disabled', fix: 'sysctl -w kernel.unprivileged_userns_clone=1' }
  if (blocked && readText('/proc/sys/user/max_user_namespaces')?.trim() === '0')
    return { reason: 'user namespaces are disabled', fix: 'sysctl -w user.max_user_namespaces=15000' }
  if (/Can't find source path \/proc\/self\/fd/.test(text))
    return {
      reason: 'the owner of the workspace cannot enter a directory above it',
      fix: 'make those directories accessible (chmod o+x), or change the owner of the workspace',
    }
  return {
    reason: text.replace(/^bwrap: /, ''),
    fix: 'run `ringfence doctor` to see what is missing on this host',
  }
}
