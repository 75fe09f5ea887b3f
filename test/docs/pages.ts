import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../conformance/world.ts'

/** The pages that readers see, and the command lines in their fenced blocks. */

export const PAGES: readonly string[] = [
  'README.md',
  ...readdirSync(join(packageRoot(), 'docs'))
    .filter((name) => name.endsWith('.md'))
    .map((name) => `docs/${name}`),
]

export const pageText = (page: string): string => readFileSync(join(packageRoot(), page), 'utf8')

/** A fenced block with the HTML comments directly above it. */
export type Block = {
  readonly language: string
  readonly line: number
  readonly lines: readonly string[]
  readonly comments: readonly string[]
}

export function blocksOf(text: string): Block[] {
  const blocks: Block[] = []
  let comments: string[] = []
  let open: { language: string; line: number; lines: string[] } | undefined
  for (const [index, line] of text.split('\n').entries()) {
    const fence = /^```(\w*)/.exec(line)
    const comment = /^<!-- (.*) -->$/.exec(line)?.[1]
    if (fence && open) {
      blocks.push({ ...open, comments })
      open = undefined
      comments = []
    } else if (fence) open = { language: fence[1] ?? '', line: index + 1, lines: [] }
    else if (open) open.lines.push(line)
    else if (comment !== undefined) comments.push(comment)
    else if (line !== '') comments = []
  }
  return blocks
}

/** A line that a reader would type, and why the test does not run it. */
export type CommandLine = {
  readonly line: number
  readonly command: string
  readonly notRun: string | undefined
}

const COMMAND = /^(?:\$ )?((?:npx )?ringfence .*)$/

export const commandLines = (text: string): CommandLine[] =>
  blocksOf(text).flatMap(({ line, lines, comments }) =>
    lines.flatMap((one, index) => {
      const command = COMMAND.exec(one)?.[1]
      if (command === undefined) return []
      return [{ line: line + index + 1, command, notRun: reasonFor(command, comments) }]
    }),
  )

/** `not run: reason` is about the whole block, ``not run: `words`: reason`` about its lines that begin with these words. */
function reasonFor(command: string, comments: readonly string[]): string | undefined {
  for (const comment of comments) {
    const [, words, reason] = /^not run: (?:`([^`]+)`: )?(.+)$/.exec(comment) ?? []
    if (reason !== undefined && command.replace(/^npx /, '').startsWith(words ?? '')) return reason
  }
  return undefined
}
