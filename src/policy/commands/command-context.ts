import type { CommandNode, CompoundList, ParsedScript } from 'unbash'
import { unseen } from './finding.ts'
import { CLOSED, fork, type Scope, type Stream, UNKNOWN } from './shell/scope.ts'
import { ANY } from './shell/unknown-text.ts'
import { expandText, runHidden, type Words } from './shell/words.ts'
import { deeper, type Walk } from './walk.ts'

/** The context of a command: its input, the covered positions for the lexical check, and the interpreter's functions. */
export type CommandContext = {
  readonly stdin: Stream
  readonly cover: (at: number, end: number) => void
  readonly runScript: (walk: Walk, scope: Scope, script: ParsedScript, around: CommandContext) => Stream
  readonly runNode: (
    walk: Walk,
    scope: Scope,
    node: CommandNode | CompoundList,
    around: CommandContext,
  ) => Stream
}

/** Records that part of the text could not be parsed. */
export const unreadable = (walk: Walk): void => {
  walk.line.push(
    unseen('shell/unreadable', 'it is not complete shell syntax, so what would run is not known'),
  )
}

/** The functions that word expansion needs, bound to one position in the line. */
export function wordsOf(walk: Walk, scope: Scope, around: CommandContext): Words {
  const inside = (source: string | undefined): CommandContext =>
    source === undefined ? { ...around, stdin: CLOSED } : { ...around, stdin: CLOSED, cover: () => {} }
  return {
    walk,
    scope,
    expandText,
    runHidden,
    cover: around.cover,
    substitute(script, _at) {
      if (!script) return unknownText(walk)
      const outer = walk.sources
      const out = deeper(walk, () => around.runScript(walk, fork(scope), script, inside(script.source)))
      walk.sources = outer
      for (const source of out.from) outer.add(source)
      return out.text.replace(/\n+$/, '')
    },
    process(script, operator, at) {
      if (!script) return unknownText(walk)
      const stdin = operator === '>' ? UNKNOWN : CLOSED
      const outer = walk.sources
      const out = deeper(walk, () =>
        around.runScript(walk, fork(scope), script, { ...inside(script.source), stdin }),
      )
      walk.sources = outer
      const path = `/dev/fd/${1000 + at}`
      scope.files.set(path, { kind: 'content', stream: out })
      return path
    },
  }
}

function unknownText(walk: Walk): string {
  unreadable(walk)
  return ANY
}
