/** The number of letters to add, remove, replace or swap to get from one word to the other. */
function distance(a: string, b: string): number {
  let before: number[] = []
  let row = Array.from({ length: b.length + 1 }, (_, at) => at)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1]
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]
      next[j] = Math.min(
        (row[j] as number) + 1,
        (next[j - 1] as number) + 1,
        (row[j - 1] as number) + (same ? 0 : 1),
        swapped ? (before[j - 2] as number) + 1 : Number.POSITIVE_INFINITY,
      )
    }
    before = row
    row = next
  }
  return row[b.length] as number
}

/** The known word that was probably meant, if one is close enough. */
export function closest(word: string, known: readonly string[]): string | undefined {
  const most = word.length > 4 ? 2 : 1
  const near = known
    .map((name) => ({ name, away: name.startsWith(word) && word.length > 2 ? 1 : distance(word, name) }))
    .filter(({ away }) => away <= most)
    .sort((a, b) => a.away - b.away)
  return near[0]?.name
}
