import type { RedirectOperator } from 'unbash'
import type { Finding } from '../finding.ts'
import { absolute, pathFindings } from '../paths.ts'
import type { Walk } from '../walk.ts'
import { EMPTY, type Scope, type Stream, textStream, UNKNOWN } from './scope.ts'
import { ANY } from './unknown-text.ts'

/** The context for checking a redirection. */
export type RedirectContext = { readonly walk: Walk; readonly scope: Scope; readonly findings: Finding[] }
/** The source or target of a redirection. */
export type Target = {
  readonly operator: RedirectOperator
  readonly path: string
  /** The descriptor before the operator; undefined for the default. */
  readonly descriptor: number | undefined
}

type Change = { readonly stdin?: Stream; readonly sink?: (out: Stream) => Stream }

/** Judges one redirection to or from a file and returns its effect on the streams. */
export function redirectTo(
  { walk, scope, findings }: RedirectContext,
  { operator, path, descriptor }: Target,
): Change {
  // `2>&1`, `<&-`, `>&3-`: descriptors, not files.
  if ((operator === '>&' || operator === '<&') && /^(\d+-?|-)$/.test(path)) return {}
  if (operator === '<' || operator === '<&') {
    const found = pathFindings(walk, scope, path, 'read')
    findings.push(...found)
    return (descriptor ?? 0) === 0 ? { stdin: readFile(scope, path, found) } : {}
  }
  findings.push(...pathFindings(walk, scope, path, 'write'))
  if (operator === '<>') findings.push(...pathFindings(walk, scope, path, 'read'))
  const output = (descriptor ?? 1) === 1
  return {
    sink: (out) => {
      const left = writeFile(scope, path, output ? out : UNKNOWN)
      return output ? left : out
    },
  }
}

/** The stream read from a file: its content is known if the line itself wrote it. */
export function readFile(scope: Scope, path: string, found: readonly Finding[] = []): Stream {
  const made = scope.files.get(absolute(path, scope.cwds[0] ?? ANY))
  if (made?.kind === 'content') return made.stream
  const secret = found.some((finding) => finding.rule.startsWith('secrets/'))
  return textStream(ANY, secret ? ['files', 'secret'] : ['files'])
}

function writeFile(scope: Scope, path: string, out: Stream): Stream {
  const at = absolute(path, scope.cwds[0] ?? ANY)
  if (/^\/dev\/(stdout|stderr|tty|fd\/\d+)$/.test(at)) return out
  scope.files.set(at, { kind: 'content', stream: out })
  return EMPTY
}
