import { homedir } from 'node:os'
import { observePath, type PathObservation } from '../host/files/walk.ts'
import { countNamesInside } from '../host/files/walk-names.ts'
import type { Config } from '../model/config.ts'
import type { PathVerdict } from '../model/decision.ts'
import {
  DEFAULT_BLOCKED,
  DEFAULT_PROTECTED,
  judgePath,
  type PathOp,
  type PathPolicy,
  type PathRequest,
  screenPath,
} from '../policy/paths/paths.ts'
import { sandboxPolicyOf } from '../policy/plan.ts'

/** Reads the facts of host paths and checks them against the policy. */

/**
 * Every policy that must agree. The operator's list says what may be mounted; a file is reached only through a workspace,
 * and a workspace must be on that list like everything else.
 */
export function policiesFor(
  config: Config,
  op: PathOp,
  workspace: string | undefined,
): readonly PathPolicy[] {
  const { allowedPrefixes } = sandboxPolicyOf(config, homedir())
  const over = (paths: readonly string[]): PathPolicy => ({
    allowed: paths.map((path) => ({ path, mode: 'rw' })),
    blocked: config.policy?.blocked_host_patterns ?? DEFAULT_BLOCKED,
    protected: DEFAULT_PROTECTED,
  })
  if (allowedPrefixes === undefined) return [over([workspace ?? process.cwd()])]
  const isMount = op === 'mount-ro' || op === 'mount-rw'
  return workspace === undefined || isMount
    ? [over(allowedPrefixes)]
    : [over(allowedPrefixes), over([workspace])]
}

/** Reads the facts of the paths in a request from this host and checks them against the policy. */
export function judgeHere(policy: PathPolicy, request: PathRequest): PathVerdict {
  const asked = [request.path, ...(request.to === undefined ? [] : [request.to])]
  const seen: PathObservation[] = []
  for (const raw of asked) {
    const screened = screenPath(raw, request.via)
    if (screened.kind === 'refused') return { verdict: 'deny', reason: screened.reason }
    seen.push(observePath(screened.path))
  }
  const [path, to] = seen as [PathObservation, PathObservation?]
  const roots = policy.allowed.map((root) => observeRoot(root.path))
  const namesInside = countNamesInside(path, roots)
  return judgePath(policy, request, {
    path,
    roots,
    ...(to === undefined ? {} : { to }),
    ...(namesInside === undefined ? {} : { namesInside }),
  })
}

/** A root that is not absolute grants nothing; it keeps its index in the list. */
function observeRoot(path: string): PathObservation {
  if (path.startsWith('/')) return observePath(path)
  return { asked: path, normal: path, symlinks: [], state: 'unreadable', errno: 'EINVAL' }
}
