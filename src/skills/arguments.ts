import { observePath } from '../host/files/walk.ts'
import type { Json } from '../model/event.ts'
import { isInWorkspace, isWithin } from '../model/path.ts'
import { judgeTarget, type NetworkPolicy, parseTarget } from '../policy/network/network.ts'
import { DEFAULT_BLOCKED, isBlockedPath, screenPath } from '../policy/paths/paths.ts'
import { readingsOf } from '../policy/paths/text.ts'
import type { SkillViolation } from '../wasm/host/host-parts.ts'
import { argumentsOf } from '../wasm/sandbox.ts'

/** The input of a script: as arguments, and what in it names a place is judged before anything starts. */

// Longer ones come by standard input alone; the kernel has a limit for arguments.
const MAX_ARGUMENTS = 64 * 1024

/** The arguments of a script; none when they are too long. */
export function scriptArguments(input: Json): readonly string[] {
  const args = argumentsOf(input)
  return args.reduce((sum, arg) => sum + Buffer.byteLength(arg) + 1, 0) > MAX_ARGUMENTS ? [] : args
}

/** Where a script's paths may lead. */
export type InputDirectories = {
  /** Relative paths start here. */
  readonly base: string
  /** Real directories and files of the host that the sandbox shows. */
  readonly roots: readonly string[]
  readonly network: NetworkPolicy
}

/** Why an input is refused. */
export type InputRefusal = {
  readonly code: 'path-traversal' | 'ssrf-blocked'
  readonly message: string
  readonly violation: SkillViolation
}

/** The first text in the input, at any depth, that leads where nothing was granted. */
export function judgeInput(input: Json, places: InputDirectories): InputRefusal | undefined {
  for (const value of textsIn(input)) {
    const refusal = /^[a-z][a-z0-9+.-]*:\/\//i.test(value)
      ? judgeUrl(value, places)
      : judgePlace(value, places)
    if (refusal) return refusal
  }
  return undefined
}

function* textsIn(input: Json): Generator<string> {
  const pending: Json[] = [input]
  for (let value = pending.pop(); value !== undefined; value = pending.pop()) {
    if (typeof value === 'string') yield value
    else if (typeof value === 'object' && value !== null) pending.push(...Object.values(value))
  }
}

function judgeUrl(url: string, { network }: InputDirectories): InputRefusal | undefined {
  const target = parseTarget(url, 'url')
  const verdict =
    target.kind === 'blocked'
      ? { verdict: 'block', reason: target.reason }
      : judgeTarget(network, target.value)
  if (verdict.verdict !== 'block') return undefined
  return {
    code: 'ssrf-blocked',
    message: verdict.reason,
    violation: { violationType: 'SsrfBlocked', details: url.slice(0, 200) },
  }
}

/** Inside the sandbox these are its own, whatever the host has there. */
const OWN = ['/skill', '/tmp']

function judgePlace(text: string, { base, roots }: InputDirectories): InputRefusal | undefined {
  const outside = (): InputRefusal => ({
    code: 'path-traversal',
    message: 'the path leads outside the workspace',
    violation: { violationType: 'PathTraversal', details: text.slice(0, 200) },
  })
  if (readingsOf(text).some((reading) => /(^|[/\\])\.\.([/\\]|$)/.test(reading))) return outside()
  const screened = screenPath(text.startsWith('/') ? text : `${base}/${text}`)
  // What cannot be a path is a text; only an absolute one is always meant as a place.
  if (screened.kind === 'refused') return text.startsWith('/') ? outside() : undefined
  if (
    OWN.some((root) => isWithin(screened.path, root)) &&
    !roots.some((root) => isInWorkspace(screened.path, root))
  )
    return undefined
  const seen = observePath(screened.path)
  if (seen.state === 'unreadable') return text.startsWith('/') ? outside() : undefined
  const real = seen.state === 'exists' ? seen.real : `${seen.ancestor}/${seen.missing.join('/')}`
  const isInside = roots.some((root) => isInWorkspace(real, root))
  const meant = text.startsWith('/') || seen.state === 'exists' || seen.symlinks.length > 0
  if (!isInside && meant) return outside()
  return seen.state === 'exists' && isBlockedPath(DEFAULT_BLOCKED, real) !== undefined ? outside() : undefined
}
