/** A unified difference of two texts, for people; exact up to a size, coarse beyond. */
export function unifiedDiff(before: string, after: string, path: string): string {
  const [old, fresh] = [linesOf(before), linesOf(after)]
  const edits = editsOf(old, fresh)
  const hunks = hunksOf(edits)
  if (hunks.length === 0) return ''
  return [`--- a/${path}`, `+++ b/${path}`, ...hunks.flatMap(hunkText)].join('\n')
}

const linesOf = (text: string): string[] => {
  const lines = text.split('\n')
  if (lines.at(-1) === '') lines.pop()
  return lines
}

type Edit = { readonly sign: ' ' | '-' | '+'; readonly line: string }

/** More cells than this are not worth a person's time: the middle is shown as removed and added. */
const MAX_CELLS = 4_000_000

function editsOf(old: readonly string[], fresh: readonly string[]): readonly Edit[] {
  let start = 0
  while (start < old.length && start < fresh.length && old[start] === fresh[start]) start++
  let end = 0
  while (end < old.length - start && end < fresh.length - start && old.at(-1 - end) === fresh.at(-1 - end))
    end++
  const kept = (lines: readonly string[]): Edit[] => lines.map((line) => ({ sign: ' ', line }))
  const middle = between(old.slice(start, old.length - end), fresh.slice(start, fresh.length - end))
  return [...kept(old.slice(0, start)), ...middle, ...kept(old.slice(old.length - end))]
}

function between(old: readonly string[], fresh: readonly string[]): readonly Edit[] {
  if (old.length * fresh.length > MAX_CELLS)
    return [
      ...old.map((line): Edit => ({ sign: '-', line })),
      ...fresh.map((line): Edit => ({ sign: '+', line })),
    ]
  const common = commonLengths(old, fresh)
  const edits: Edit[] = []
  let [i, j] = [0, 0]
  while (i < old.length || j < fresh.length) {
    const [a, b] = [old[i], fresh[j]]
    if (a !== undefined && a === b) {
      edits.push({ sign: ' ', line: a })
      i++
      j++
    } else if (a !== undefined && (b === undefined || at(common, i + 1, j) >= at(common, i, j + 1))) {
      edits.push({ sign: '-', line: a })
      i++
    } else {
      edits.push({ sign: '+', line: b as string })
      j++
    }
  }
  return edits
}

const at = (table: readonly Uint32Array[], i: number, j: number): number => table[i]?.[j] ?? 0

/** How many lines the two have in common from each pair of places on. */
function commonLengths(old: readonly string[], fresh: readonly string[]): readonly Uint32Array[] {
  const table = Array.from({ length: old.length + 1 }, () => new Uint32Array(fresh.length + 1))
  for (let i = old.length - 1; i >= 0; i--)
    for (let j = fresh.length - 1; j >= 0; j--)
      (table[i] as Uint32Array)[j] =
        old[i] === fresh[j] ? at(table, i + 1, j + 1) + 1 : Math.max(at(table, i + 1, j), at(table, i, j + 1))
  return table
}

type Hunk = { readonly old: number; readonly fresh: number; readonly edits: readonly Edit[] }

const AROUND = 3

function hunksOf(edits: readonly Edit[]): readonly Hunk[] {
  const near = new Set<number>()
  for (const [index, { sign }] of edits.entries())
    if (sign !== ' ') for (let i = index - AROUND; i <= index + AROUND; i++) near.add(i)
  const hunks: { old: number; fresh: number; edits: Edit[] }[] = []
  let [old, fresh, open] = [1, 1, false]
  for (const [index, edit] of edits.entries()) {
    if (near.has(index) && !open) hunks.push({ old, fresh, edits: [] })
    open = near.has(index)
    if (open) hunks.at(-1)?.edits.push(edit)
    if (edit.sign !== '+') old++
    if (edit.sign !== '-') fresh++
  }
  return hunks
}

function hunkText({ old, fresh, edits }: Hunk): readonly string[] {
  const count = (but: string): number => edits.filter(({ sign }) => sign !== but).length
  const head = `@@ -${old},${count('+')} +${fresh},${count('-')} @@`
  return [head, ...edits.map(({ sign, line }) => sign + line)]
}
