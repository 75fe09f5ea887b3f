/** Lines that differ between two texts, with a few around them. */
export type DiffLine = { readonly kind: 'same' | 'added' | 'removed' | 'gap'; readonly text: string }

const AROUND = 3
const MOST_CELLS = 4_000_000

/** A line ends with its newline; what follows the last one is no line. */
const linesOf = (text: string): readonly string[] => (text === '' ? [] : text.replace(/\n$/, '').split('\n'))

export function diffLines(before: string, after: string): readonly DiffLine[] {
  const [a, b] = [linesOf(before), linesOf(after)]
  let start = 0
  while (start < a.length && start < b.length && a[start] === b[start]) start++
  let end = 0
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end])
    end++
  const same = (lines: readonly string[]): DiffLine[] => lines.map((text) => ({ kind: 'same', text }))
  const middle = changesIn(a.slice(start, a.length - end), b.slice(start, b.length - end))
  return shortened([...same(a.slice(0, start)), ...middle, ...same(end === 0 ? [] : a.slice(-end))])
}

/** The longest common part, by the table; what is too large for it is all old, then all new. */
function changesIn(a: readonly string[], b: readonly string[]): DiffLine[] {
  const gone = (text: string): DiffLine => ({ kind: 'removed', text })
  const come = (text: string): DiffLine => ({ kind: 'added', text })
  if (a.length * b.length > MOST_CELLS) return [...a.map(gone), ...b.map(come)]
  const width = b.length + 1
  const table = new Uint32Array((a.length + 1) * width)
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      table[i * width + j] =
        a[i] === b[j]
          ? (table[(i + 1) * width + j + 1] as number) + 1
          : Math.max(table[(i + 1) * width + j] as number, table[i * width + j + 1] as number)
  const out: DiffLine[] = []
  let [i, j] = [0, 0]
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      out.push({ kind: 'same', text: a[i++] as string })
      j++
    } else if ((table[(i + 1) * width + j] as number) >= (table[i * width + j + 1] as number))
      out.push(gone(a[i++] as string))
    else out.push(come(b[j++] as string))
  }
  return [...out, ...a.slice(i).map(gone), ...b.slice(j).map(come)]
}

function shortened(lines: readonly DiffLine[]): readonly DiffLine[] {
  const near = (index: number): boolean =>
    lines.slice(Math.max(0, index - AROUND), index + AROUND + 1).some(({ kind }) => kind !== 'same')
  const out: DiffLine[] = []
  for (const [index, line] of lines.entries()) {
    if (near(index)) out.push(line)
    else if (out.at(-1)?.kind !== 'gap') out.push({ kind: 'gap', text: '' })
  }
  return out
}
