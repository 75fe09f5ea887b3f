import type { ParsedScript, Redirection } from 'unbash'
import { type CommandContext, unreadable, wordsOf } from '../command-context.ts'
import { dynamic, type Finding } from '../finding.ts'
import { LazySet } from '../lazy-map.ts'
import { deeper, spend, type Walk } from '../walk.ts'
import { redirectTo } from './redirect.ts'
import { EMPTY, fork, mergeInto, type Scope, type Source, type Stream, textStream } from './scope.ts'
import { ANY } from './unknown-text.ts'
import { expandBody, expandText, expandWord, type Words } from './words.ts'

type Redirected = { readonly stdin: Stream | undefined; readonly finish: (out: Stream) => Stream }

const UNREDIRECTED: Redirected = { stdin: undefined, finish: (out) => out }

type Redirecting = { readonly around: CommandContext; readonly findings: Finding[] }

/** Judges redirections; `finish` returns the output that is left after redirection. */
export function redirections(
  walk: Walk,
  scope: Scope,
  list: readonly Redirection[],
  { around, findings }: Redirecting,
): Redirected {
  if (list.length === 0) return UNREDIRECTED
  // A program's redirections are expanded in its own process, a builtin's in the shell: `<<< ${x:=1}` may or may not set x.
  const inside = fork(scope)
  const words = wordsOf(walk, inside, around)
  let stdin: Stream | undefined
  const sinks: ((out: Stream) => Stream)[] = []
  for (const redirect of list) {
    spend(walk, 4)
    if (redirect.type === 'HereDoc') {
      // bash ends it at the end of the line, other shells run nothing at all. Inside a substitution they end it at different points.
      if (!redirect.closing) {
        if (walk.depth === 0 && redirect.delimiter?.quoted)
          findings.push(dynamic('it has a here-document without an end'))
        else unreadable(walk)
      }
      stdin = fed(walk, () =>
        redirect.delimiter?.quoted ? redirect.body.text : expandBody(words, redirect.body),
      )
    } else if (redirect.type === 'HereString') {
      const { target } = redirect
      stdin = fed(walk, () => (target ? `${expandText(words, target)}\n` : ''))
    } else if (redirect.target) {
      const feeds = feedsProcess(redirect.target.parts)
      if (feeds) sinks.push((out) => feed(walk, scope, feeds, { ...around, stdin: { ...out, piped: true } }))
      else {
        const descriptor =
          redirect.descriptor?.type === 'FileDescriptor' ? redirect.descriptor.value : undefined
        const target = { operator: redirect.operator, path: targetOf(walk, words, redirect), descriptor }
        const change = redirectTo({ walk, scope, findings }, target)
        if (change.stdin) stdin = change.stdin
        if (change.sink) sinks.push(change.sink)
      }
    }
  }
  mergeInto(scope, inside)
  return { stdin, finish: (out: Stream): Stream => sinks.reduce((stream, sink) => sink(stream), out) }
}

/** A here-document inherits the sources of the substitutions in it. */
function fed(walk: Walk, read: () => string): Stream {
  const outer = walk.sources
  walk.sources = new LazySet()
  const text = read()
  const from = [...walk.sources.values()].filter((source): source is Source => source[0] !== '$')
  for (const source of walk.sources.values()) outer.add(source)
  walk.sources = outer
  return textStream(text, from)
}

function targetOf(walk: Walk, words: Words, redirect: Extract<Redirection, { type: 'Redirect' }>): string {
  const target = redirect.target
  if (!target) return ANY
  words.cover(target.pos, target.pos)
  const fields = expandWord(words, target)
  if (fields.length === 1) return fields[0] as string
  walk.line.push(dynamic('a redirection whose target is not one word'))
  return ANY
}

type Parts = NonNullable<Extract<Redirection, { type: 'Redirect' }>['target']>['parts']

function feedsProcess(parts: Parts) {
  const part = parts?.[0]
  return parts?.length === 1 && part?.type === 'ProcessSubstitution' && part.operator === '>'
    ? part
    : undefined
}

function feed(
  walk: Walk,
  scope: Scope,
  part: NonNullable<ReturnType<typeof feedsProcess>>,
  around: CommandContext,
): Stream {
  around.cover(part.pos, part.end)
  if (part.script)
    deeper(walk, () => around.runScript(walk, fork(scope), part.script as ParsedScript, around))
  else unreadable(walk)
  return EMPTY
}
