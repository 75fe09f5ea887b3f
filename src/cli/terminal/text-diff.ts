import { type DiffHunk, type DiffLine, diffHunks } from '../../model/text/text-diff.ts'

const SIGNS = { same: ' ', added: '+', removed: '-' } as const

/** A unified diff of two texts; empty when they are equal. */
export function unifiedDiff(before: string, after: string, path: string): string {
  const hunks = diffHunks(before, after)
  if (hunks.length === 0) return ''
  return [`--- a/${path}`, `+++ b/${path}`, ...hunks.flatMap(hunkText)].join('\n')
}

function hunkText({ oldStart, newStart, lines }: DiffHunk): readonly string[] {
  const count = (other: DiffLine['kind']): number => lines.filter(({ kind }) => kind !== other).length
  const head = `@@ -${oldStart},${count('added')} +${newStart},${count('removed')} @@`
  return [head, ...lines.map(({ kind, text }) => SIGNS[kind] + text)]
}
