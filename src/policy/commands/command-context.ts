import type { CommandNode, CompoundList, ParsedScript, Word } from 'unbash'
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
export const wordsOf = (walk: Walk, scope: Scope, around: CommandContext): Words =>
  new CommandWords(walk, scope, around, around.cover)

/** For text that is not part of the line. */
export const NOT_COVERING = (): void => {}

class CommandWords implements Words {
  readonly walk: Walk
  readonly scope: Scope
  readonly cover: CommandContext['cover']
  private readonly around: CommandContext

  constructor(walk: Walk, scope: Scope, around: CommandContext, cover: CommandContext['cover']) {
    this.walk = walk
    this.scope = scope
    this.around = around
    this.cover = cover
  }

  expandText(words: Words, word: Word): string {
    return expandText(words, word)
  }

  runHidden(words: Words, text: string): void {
    runHidden(words, text)
  }

  uncovering(): Words {
    return new CommandWords(this.walk, this.scope, this.around, NOT_COVERING)
  }

  substitute(script: ParsedScript | undefined): string {
    const { walk } = this
    if (!script) return unknownText(walk)
    const outer = walk.sources
    const out = this.run(script, CLOSED)
    walk.sources = outer
    for (const source of out.from) outer.add(source)
    return out.text.replace(/\n+$/, '')
  }

  process(script: ParsedScript | undefined, operator: '<' | '>', at: number): string {
    const { walk, scope } = this
    if (!script) return unknownText(walk)
    const outer = walk.sources
    const out = this.run(script, operator === '>' ? UNKNOWN : CLOSED)
    walk.sources = outer
    const path = `/dev/fd/${1000 + at}`
    scope.files.set(path, { kind: 'content', stream: out })
    return path
  }

  private run(script: ParsedScript, stdin: Stream): Stream {
    const { walk, scope, around } = this
    const inside =
      script.source === undefined ? { ...around, stdin } : { ...around, stdin, cover: NOT_COVERING }
    return deeper(walk, () => around.runScript(walk, fork(scope), script, inside))
  }
}

function unknownText(walk: Walk): string {
  unreadable(walk)
  return ANY
}
