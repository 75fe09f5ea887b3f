import { observePath } from '../host/files/walk.ts'
import type { Json } from '../model/event.ts'
import { isInWorkspace, isWithin } from '../model/files/path.ts'
import { judgeTarget, type NetworkPolicy, parseTarget } from '../policy/network/network.ts'
import { DEFAULT_BLOCKED, isBlockedPath, screenPath } from '../policy/paths/paths.ts'
import { readingsOf } from '../policy/paths/text.ts'
import type { SkillViolation } from '../wasm/host/host-parts.ts'
import { argumentsOf } from '../wasm/sandbox.ts'

/** Converts the input of a script to arguments and checks every path and URL in it before the script starts. */

// Longer inputs are passed on standard input only: the kernel limits the size of arguments.
const MAX_ARGUMENTS = 64 * 1024

/** The arguments of a script; empty if they would be too long. */
export function scriptArguments(input: Json): readonly string[] {
  const args = argumentsOf(input)
  return args.reduce((sum, arg) => sum + Buffer.byteLength(arg) + 1, 0) > MAX_ARGUMENTS ? [] : args
}

/** The directories that a script's paths may refer to. */
export type InputDirectories = {
  /** Relative paths start here. */
  readonly base: string
  /** Real directories and files of the host that are mounted in the sandbox. */
  readonly roots: readonly string[]
  readonly network: NetworkPolicy
}

/** Why an input is refused. */
export type InputRefusal = {
  readonly code: 'path-traversal' | 'ssrf-blocked'
  readonly message: string
  readonly violation: SkillViolation
}

/** Refuses the first string in the input, at any depth, that refers to a path or host that is not granted. */
export function judgeInput(input: Json, directories: InputDirectories): InputRefusal | undefined {
  for (const value of textsIn(input)) {
    const refusal = /^[a-z][a-z0-9+.-]*:\/\//i.test(value)
      ? judgeUrl(value, directories)
      : judgePath(value, directories)
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

/** The sandbox has its own directories at these paths; the host's are not visible. */
const OWN = ['/skill', '/tmp']

function judgePath(text: string, { base, roots }: InputDirectories): InputRefusal | undefined {
  const outside = (): InputRefusal => ({
    code: 'path-traversal',
    message: 'the path leads outside the workspace',
    violation: { violationType: 'PathTraversal', details: text.slice(0, 200) },
  })
  if (readingsOf(text).some((reading) => /(^|[/\\])\.\.([/\\]|$)/.test(reading))) return outside()
  const screened = screenPath(text.startsWith('/') ? text : `${base}/${text}`)
  // A string that is not a valid path is plain text; only an absolute path is always treated as a path.
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
