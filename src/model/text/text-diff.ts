import { structuredPatch } from 'diff'

/** Line differences between two texts, for people to read. The CLI and the console show the same hunks. */

export type DiffLine = { readonly kind: 'same' | 'added' | 'removed'; readonly text: string }

/** One changed part of a text with the lines around it. */
export type DiffHunk = {
  readonly oldStart: number
  readonly newStart: number
  readonly lines: readonly DiffLine[]
}

const CONTEXT_LINES = 3
/** About half a second of work. Beyond it, the old text is shown as removed and the new text as added. */
const MAX_EDITS = 1500

const KINDS: Readonly<Record<string, DiffLine['kind']>> = { ' ': 'same', '+': 'added', '-': 'removed' }

/** A missing newline at the end of the last line is not a difference. */
const terminated = (text: string): string => (text === '' || text.endsWith('\n') ? text : `${text}\n`)

/** The changes from one text to another, each with a few unchanged lines around it. */
export function diffHunks(before: string, after: string): readonly DiffHunk[] {
  const [old, fresh] = [terminated(before), terminated(after)]
  const options = { context: CONTEXT_LINES, maxEditLength: MAX_EDITS }
  const patch = structuredPatch('', '', old, fresh, '', '', options)
  if (patch === undefined)
    return [{ oldStart: 1, newStart: 1, lines: [...linesOf('removed', old), ...linesOf('added', fresh)] }]
  return patch.hunks.map(({ oldStart, newStart, lines }) => ({
    oldStart,
    newStart,
    lines: lines.map((line) => ({ kind: KINDS[line.charAt(0)] ?? 'same', text: line.slice(1) })),
  }))
}

const linesOf = (kind: DiffLine['kind'], text: string): DiffLine[] =>
  text
    .split('\n')
    .slice(0, -1)
    .map((line) => ({ kind, text: line }))
