import type { PathVerdict } from '../model/decision.ts'
import { hardDenied, hardDeniedSource, hasMountSyntax, isWithin, refuseTarget } from './paths-mount.ts'
import {
  endsInsidePattern,
  holdsPattern,
  isBlockedPath,
  namesOf,
  type Pattern,
  patternsOf,
  readingsOf,
  screenPath,
} from './paths-text.ts'
import { PROTECTION } from './protect.ts'

export { isBlockedPath, type Screened, screenPath } from './paths-text.ts'

/** What the operator permits of the host's paths. Nothing is granted when `allowed` is empty. */
export type PathPolicy = {
  readonly allowed: readonly AllowedRoot[]
  /** Segments or runs of segments (`.config/gcloud`) that no request may name or reach. */
  readonly blocked: readonly string[]
  /** Names below a root that cannot be changed or created. */
  readonly protected: readonly string[]
}
export type AllowedRoot = { readonly path: string; readonly mode: 'ro' | 'rw' }

export const PATH_OPS = [
  'read',
  'write',
  'create',
  'rename',
  'delete-recursive',
  'mount-ro',
  'mount-rw',
] as const
export type PathOp = (typeof PATH_OPS)[number]

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

/** The part of host's observation that judgement needs; `host/walk.ts` makes it. */
export type PathEvidence = { readonly normal: string; readonly symlinks: readonly Link[] } & (
  | { readonly state: 'exists'; readonly real: string; readonly thing: Thing }
  | { readonly state: 'missing'; readonly ancestor: string; readonly missing: readonly string[] }
  | { readonly state: 'unreadable' }
)

export type PathFacts = {
  readonly path: PathEvidence
  readonly to?: PathEvidence
  /** One for each allowed root, in the policy's order. */
  readonly roots: readonly PathEvidence[]
  /** How many of the file's names lie below the allowed roots; absent when nobody counted. */
  readonly namesInside?: number
}

/** Credential names that are blocked when an operator says nothing else. */
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

/** The same protected names as a sandbox has, as patterns. */
export const DEFAULT_PROTECTED: readonly string[] = [...PROTECTION.inner, ...PROTECTION.names]

// SECURITY: one sentence for both, so that nobody learns which paths exist on the host.
const NOT_HERE = 'path is missing or outside the allowed paths'

type Grant = { readonly root: string; readonly rootAsked: string; readonly mode: 'ro' | 'rw' }
type Judged = { readonly effective: string; readonly evidence: PathEvidence; readonly grant: Grant }

const deny = (reason: string): PathVerdict => ({ verdict: 'deny', reason })

const changes = (op: PathOp): boolean => op !== 'read' && op !== 'mount-ro'
const isMount = (op: PathOp): boolean => op === 'mount-ro' || op === 'mount-rw'

/** Judges one use of one path from what was observed of it; pure, so that a decision can be replayed. */
export function judgePath(policy: PathPolicy, request: PathRequest, facts: PathFacts): PathVerdict {
  const first = judgeOne(
    policy,
    request.op,
    { raw: request.path, via: request.via, evidence: facts.path },
    facts,
  )
  if (typeof first === 'string') return deny(first)
  const problem = problemOfOp(policy, request, facts, first)
  if (problem !== undefined) return deny(problem)
  return { verdict: 'allow', reason: `inside the ${first.grant.mode} path \`${first.grant.root}\`` }
}

type Named = { readonly raw: string; readonly via?: string | undefined; readonly evidence: PathEvidence }

/** What holds for every path of a request, source or new name: the place reached and its grant, or a reason. */
function judgeOne(policy: PathPolicy, op: PathOp, named: Named, facts: PathFacts): Judged | string {
  const screened = screenPath(named.raw, named.via)
  if (screened.kind === 'refused') return screened.reason
  const { evidence } = named
  const effective = placeOf(evidence)
  const blocked =
    isBlockedPath(policy.blocked, evidence.normal) ?? isBlockedPath(policy.blocked, effective ?? '')
  if (blocked !== undefined) return `\`${blocked}\` is a blocked name`
  if (effective === undefined) return NOT_HERE
  const hard = [evidence.normal, effective, ...evidence.symlinks.map((link) => link.at)].map(hardDenied)
  const hardReason = hard.find((reason) => reason !== undefined)
  if (hardReason !== undefined) return hardReason
  const grant = grantOf(policy, facts.roots, effective)
  if (grant === undefined) return NOT_HERE
  if (changes(op) && grant.mode !== 'rw') return `\`${grant.root}\` is read-only`
  const kept = changes(op) ? protectedName(policy.protected, { evidence, effective, grant }) : undefined
  return kept === undefined ? { effective, evidence, grant } : `\`${kept}\` is a protected name`
}

/** The real place that the path names, whether or not it exists yet. */
function placeOf(evidence: PathEvidence): string | undefined {
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

/** The longest root that holds the place; among equals the read-only one. Roots are compared by real path. */
function grantOf(policy: PathPolicy, roots: readonly PathEvidence[], place: string): Grant | undefined {
  let best: Grant | undefined
  policy.allowed.forEach(({ mode }, index) => {
    const evidence = roots[index]
    if (evidence?.state !== 'exists' || !isWithin(place, evidence.real)) return
    const longer = evidence.real.length - (best?.root.length ?? -1)
    if (longer > 0 || (longer === 0 && mode === 'ro'))
      best = { root: evidence.real, rootAsked: evidence.normal, mode }
  })
  return best
}

const below = (path: string, root: string): string | undefined =>
  isWithin(path, root) ? path.slice(root === '/' ? 0 : root.length) : undefined

/**
 * The protected pattern that a change would hit: at or below it, or on a directory that the pattern goes through
 * (`.git` for `.git/hooks`), whose replacement would bring its own.
 */
function protectedName(
  patterns: readonly string[],
  { evidence, effective, grant }: Judged,
): string | undefined {
  const { root, rootAsked } = grant
  const asked = below(evidence.normal, rootAsked) ?? below(evidence.normal, root)
  for (const relative of [below(effective, root), asked]) {
    for (const reading of relative === undefined ? [] : readingsOf(relative)) {
      const hit = protectedIn(patterns, namesOf(reading))
      if (hit !== undefined) return hit.text
    }
  }
  return undefined
}

function protectedIn(patterns: readonly string[], names: ReturnType<typeof namesOf>): Pattern | undefined {
  // Packages bring their own `.vscode`; a repository among them (`.git/…`) still counts.
  const dependency = names.findIndex(({ plain }) => PROTECTION.exceptBelow.includes(plain))
  const own = dependency === -1 ? names : names.slice(0, dependency)
  return patternsOf(patterns).find(
    (pattern) =>
      holdsPattern(pattern.parts.length > 1 ? names : own, pattern) || endsInsidePattern(names, pattern),
  )
}

function problemOfOp(
  policy: PathPolicy,
  request: PathRequest,
  facts: PathFacts,
  judged: Judged,
): string | undefined {
  switch (request.op) {
    case 'read':
      return judged.evidence.state === 'missing' ? NOT_HERE : problemOfThing(request.op, facts, judged)
    case 'write':
    case 'create':
      return judged.evidence.state === 'missing' ? undefined : problemOfThing(request.op, facts, judged)
    case 'rename':
      return problemOfMove(facts, judged) ?? problemOfNewName(policy, request, facts)
    case 'delete-recursive':
      return problemOfMove(facts, judged)
    case 'mount-ro':
    case 'mount-rw':
      return problemOfMount(policy, request, facts, judged)
    default:
      return request.op satisfies never
  }
}

/** Devices, sockets and pipes are other things than data; a second name makes a file reachable from elsewhere. */
function problemOfThing(op: PathOp, facts: PathFacts, { evidence, effective }: Judged): string | undefined {
  if (evidence.state !== 'exists') return NOT_HERE
  const { kind, nlink } = evidence.thing
  if (kind !== 'file' && kind !== 'dir') return `a ${kind} is never opened`
  if (kind === 'dir') return changes(op) && !isMount(op) ? 'path is a directory' : undefined
  if (nlink < 2 || nlink === facts.namesInside) return undefined
  // Package managers hard-link installed files from their store; those are read all day.
  const dependency = effective.split('/').some((segment) => PROTECTION.exceptBelow.includes(segment))
  return op === 'read' && dependency ? undefined : 'the file has another name outside the allowed paths'
}

function problemOfMove(facts: PathFacts, { evidence, effective }: Judged): string | undefined {
  if (evidence.state !== 'exists') return NOT_HERE
  const holdsRoot = facts.roots.some((root) => root.state === 'exists' && isWithin(root.real, effective))
  return holdsRoot ? 'an allowed path itself cannot be moved or deleted' : undefined
}

function problemOfNewName(policy: PathPolicy, request: PathRequest, facts: PathFacts): string | undefined {
  if (request.to === undefined || facts.to === undefined) return 'rename needs a new name'
  const judged = judgeOne(policy, 'rename', { raw: request.to, via: request.via, evidence: facts.to }, facts)
  if (typeof judged === 'string') return judged
  return facts.to.state === 'missing' ? undefined : problemOfMove(facts, judged)
}

function problemOfMount(
  policy: PathPolicy,
  { op, target }: PathRequest,
  facts: PathFacts,
  judged: Judged,
): string | undefined {
  const { evidence, effective } = judged
  if (hasMountSyntax(effective) || hasMountSyntax(evidence.normal)) return 'path holds mount option syntax'
  const source = hardDeniedSource(effective) ?? problemOfThing(op, facts, judged)
  if (source !== undefined || target === undefined) return source
  const blocked = isBlockedPath(policy.blocked, target) ?? isBlockedPath(policy.protected, target)
  return blocked === undefined ? refuseTarget(target) : `mount target holds the name \`${blocked}\``
}
