import type { PathVerdict } from '../../model/decision.ts'
import { isWithin } from '../../model/files/path.ts'
import { hardDenied, hardDeniedSource, hasMountSyntax, refuseTarget } from './mount.ts'
import { PROTECTION } from './protect.ts'
import {
  endsInsidePattern,
  holdsPattern,
  isBlockedPath,
  namesOf,
  type Pattern,
  patternsOf,
  readingsOf,
  screenPath,
} from './text.ts'

export { isBlockedPath, screenPath } from './text.ts'

/** The operator's policy for host paths. Nothing is granted if `allowed` is empty. */
export type PathPolicy = {
  readonly allowed: readonly AllowedRoot[]
  /** Segments or sequences of segments (`.config/gcloud`) that no request may name or reach. */
  readonly blocked: readonly string[]
  /** Names below a root that cannot be changed or created. */
  readonly protected: readonly string[]
}
/** A directory that the operator allows, with its mode. */
export type AllowedRoot = { readonly path: string; readonly mode: 'ro' | 'rw' }

/** Operations on a path. */
export const PATH_OPS = [
  'read',
  'write',
  'create',
  'rename',
  'delete-recursive',
  'mount-ro',
  'mount-rw',
] as const
/** One operation on a path. */
export type PathOp = (typeof PATH_OPS)[number]

/** One path and the requested operation. */
export type PathRequest = {
  readonly path: string
  readonly op: PathOp
  /** The new name of a rename. */
  readonly to?: string
  /** The guest path of a mount. */
  readonly target?: string
  /** `http`: `path` is a raw percent-encoded parameter. */
  readonly via?: string
}

type Link = { readonly at: string; readonly target: string }
type Thing = { readonly kind: string; readonly nlink: number }

/** The part of the host's observation that the decision needs; created by `host/files/walk.ts`. */
export type PathEvidence = { readonly normal: string; readonly symlinks: readonly Link[] } & (
  | { readonly state: 'exists'; readonly real: string; readonly thing: Thing }
  | { readonly state: 'missing'; readonly ancestor: string; readonly missing: readonly string[] }
  | { readonly state: 'unreadable' }
)

/** Observations of a path and of the allowed roots. */
export type PathFacts = {
  readonly path: PathEvidence
  readonly to?: PathEvidence
  /** One per allowed root, in the policy's order. */
  readonly roots: readonly PathEvidence[]
  /** How many hard links of the file are below the allowed roots; absent if they were not counted. */
  readonly namesInside?: number
}

/** Credential names that are blocked by default. */
export const DEFAULT_BLOCKED: readonly string[] = [
  '.ssh',
  '.aws',
  '.gnupg',
  '.kube',
  '.azure',
  '.docker',
  'secrets',
  'credentials',
  '.config/gcloud',
  '.config/gh',
  '.env',
  '.env.local',
  '.env.production',
  '.netrc',
  '.npmrc',
  '.pypirc',
  '.git-credentials',
  '.pgpass',
  '.vault-token',
  '.terraform.d',
  'id_rsa',
  'id_ecdsa',
  'id_ed25519',
]

/** The protected names of a sandbox, as patterns. */
export const DEFAULT_PROTECTED: readonly string[] = [...PROTECTION.inner, ...PROTECTION.names]

// SECURITY: one message for both cases, so that it does not disclose which paths exist on the host.
/** The reason for every path that may not be used: it does not say whether the path exists. */
export const NOT_HERE = 'path is missing or outside the allowed paths'

type Grant = { readonly root: string; readonly rootAsked: string; readonly mode: 'ro' | 'rw' }
type Judged = { readonly effective: string; readonly evidence: PathEvidence; readonly grant: Grant }

const deny = (reason: string): PathVerdict => ({ verdict: 'deny', reason })

const changes = (op: PathOp): boolean => op !== 'read' && op !== 'mount-ro'
const isMount = (op: PathOp): boolean => op === 'mount-ro' || op === 'mount-rw'

type Case = { readonly policy: PathPolicy; readonly request: PathRequest; readonly facts: PathFacts }

/** Judges one use of one path from its observation; pure, so that a decision can be replayed. */
export function judgePath(policy: PathPolicy, request: PathRequest, facts: PathFacts): PathVerdict {
  const asked: Case = { policy, request, facts }
  const judged = judgeName(asked, request.path, facts.path)
  if (typeof judged === 'string') return deny(judged)
  const problem = problemOfOp(asked, judged)
  if (problem !== undefined) return deny(problem)
  return { verdict: 'allow', reason: `inside the ${judged.grant.mode} path \`${judged.grant.root}\`` }
}

/**
 * The check for every path of a request, source or new name: returns the resolved path and its grant, or a reason.
 */
function judgeName({ policy, request, facts }: Case, raw: string, evidence: PathEvidence): Judged | string {
  const screened = screenPath(raw, request.via)
  if (screened.kind === 'refused') return screened.reason
  const effective = effectivePathOf(evidence)
  const grant = effective === undefined ? undefined : grantOf(policy, facts.roots, effective)
  // SECURITY: outside the roots, only the requested text may determine the reason; a reason based on the resolved path would
  // disclose facts about the host.
  const locations =
    grant === undefined ? [] : [effective as string, ...evidence.symlinks.map((link) => link.at)]
  const never = [evidence.normal, ...locations].map(hardDenied).find((reason) => reason !== undefined)
  if (never !== undefined) return never
  const blocked =
    isBlockedPath(policy.blocked, evidence.normal) ??
    (locations[0] === undefined || locations[0] === evidence.normal
      ? undefined
      : isBlockedPath(policy.blocked, locations[0]))
  if (blocked !== undefined) return `\`${blocked}\` is a blocked name`
  if (effective === undefined || grant === undefined) return NOT_HERE
  const judged: Judged = { effective, evidence, grant }
  return (changes(request.op) ? problemOfChange(policy, judged) : undefined) ?? judged
}

function problemOfChange(policy: PathPolicy, judged: Judged): string | undefined {
  if (judged.grant.mode !== 'rw') return `\`${judged.grant.root}\` is read-only`
  const kept = protectedName(policy.protected, judged)
  return kept === undefined ? undefined : `\`${kept}\` is a protected name`
}

/** The resolved path, whether or not it exists yet. */
function effectivePathOf(evidence: PathEvidence): string | undefined {
  switch (evidence.state) {
    case 'exists':
      return evidence.real
    case 'missing':
      return `${evidence.ancestor === '/' ? '' : evidence.ancestor}/${evidence.missing.join('/')}`
    case 'unreadable':
      return undefined
    default:
      return evidence satisfies never
  }
}

/** The longest root that contains the path; among equals the read-only one. Roots are compared by real path. */
function grantOf(policy: PathPolicy, roots: readonly PathEvidence[], path: string): Grant | undefined {
  let best: Grant | undefined
  policy.allowed.forEach(({ mode }, index) => {
    const evidence = roots[index]
    if (evidence?.state !== 'exists' || !isWithin(path, evidence.real)) return
    const longer = evidence.real.length - (best?.root.length ?? -1)
    if (longer > 0 || (longer === 0 && mode === 'ro'))
      best = { root: evidence.real, rootAsked: evidence.normal, mode }
  })
  return best
}

const below = (path: string, root: string): string | undefined =>
  isWithin(path, root) ? path.slice(root === '/' ? 0 : root.length) : undefined

/**
 * The protected pattern that a change would affect: the path is at or below it, or is a parent directory of it (`.git`
 * for `.git/hooks`), whose replacement could contain the protected name.
 */
function protectedName(
  patterns: readonly string[],
  { evidence, effective, grant }: Judged,
): string | undefined {
  const { root, rootAsked } = grant
  const asked = below(evidence.normal, rootAsked) ?? below(evidence.normal, root)
  for (const relative of new Set([below(effective, root), asked])) {
    for (const reading of relative === undefined ? [] : readingsOf(relative)) {
      const hit = protectedIn(patterns, namesOf(reading))
      if (hit !== undefined) return hit.text
    }
  }
  return undefined
}

function protectedIn(patterns: readonly string[], names: ReturnType<typeof namesOf>): Pattern | undefined {
  // Packages contain their own `.vscode`; a repository among them (`.git/…`) is still protected.
  const dependency = names.findIndex(({ plain }) => PROTECTION.exceptBelow.includes(plain))
  const own = dependency === -1 ? names : names.slice(0, dependency)
  return patternsOf(patterns).find(
    (pattern) =>
      holdsPattern(pattern.parts.length > 1 ? names : own, pattern) || endsInsidePattern(names, pattern),
  )
}

function problemOfOp(asked: Case, judged: Judged): string | undefined {
  const { op } = asked.request
  const { state } = judged.evidence
  switch (op) {
    case 'read':
      return problemOfThing(asked, judged)
    case 'write':
    case 'create':
      return state === 'missing' ? undefined : problemOfThing(asked, judged)
    case 'rename':
      return problemOfMove(asked, judged) ?? problemOfNewName(asked)
    case 'delete-recursive':
      return problemOfMove(asked, judged)
    case 'mount-ro':
    case 'mount-rw':
      return problemOfMount(asked, judged)
    default:
      return op satisfies never
  }
}

/**
 * Refuses devices, sockets and pipes, and files with a second hard link, which are reachable from elsewhere.
 */
function problemOfThing(
  { request: { op }, facts }: Case,
  { evidence, effective }: Judged,
): string | undefined {
  if (evidence.state !== 'exists') return NOT_HERE
  const { kind, nlink } = evidence.thing
  if (kind !== 'file' && kind !== 'dir') return `a ${kind} is never opened`
  if (kind === 'dir') return changes(op) && !isMount(op) ? 'path is a directory' : undefined
  if (nlink < 2 || nlink === facts.namesInside) return undefined
  // Package managers hard-link installed files from their store, and reading them is common.
  const dependency = effective.split('/').some((segment) => PROTECTION.exceptBelow.includes(segment))
  return op === 'read' && dependency ? undefined : 'the file has another name outside the allowed paths'
}

function problemOfMove({ facts }: Case, { evidence, effective }: Judged): string | undefined {
  if (evidence.state !== 'exists') return NOT_HERE
  const holdsRoot = facts.roots.some((root) => root.state === 'exists' && isWithin(root.real, effective))
  return holdsRoot ? 'an allowed path itself cannot be moved or deleted' : undefined
}

function problemOfNewName(asked: Case): string | undefined {
  const { request, facts } = asked
  if (request.to === undefined || facts.to === undefined) return 'rename needs a new name'
  const judged = judgeName(asked, request.to, facts.to)
  if (typeof judged === 'string') return judged
  return facts.to.state === 'missing' ? undefined : problemOfMove(asked, judged)
}

function problemOfMount(asked: Case, judged: Judged): string | undefined {
  const { evidence, effective } = judged
  const { target } = asked.request
  if (hasMountSyntax(effective) || hasMountSyntax(evidence.normal)) return 'path holds mount option syntax'
  const source = hardDeniedSource(effective) ?? problemOfThing(asked, judged)
  if (source !== undefined || target === undefined) return source
  const blocked = isBlockedPath(asked.policy.blocked, target) ?? isBlockedPath(asked.policy.protected, target)
  return blocked === undefined ? refuseTarget(target) : `mount target holds the name \`${blocked}\``
}
