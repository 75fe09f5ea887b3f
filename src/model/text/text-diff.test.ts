import { expect, test } from 'vitest'
import { type DiffLine, diffHunks } from './text-diff.ts'

const numbered = (count: number, word = 'line'): string[] =>
  Array.from({ length: count }, (_, index) => `${word} ${index}`)
const of = (kind: DiffLine['kind'], hunks: ReturnType<typeof diffHunks>): string[] =>
  hunks.flatMap(({ lines }) => lines.filter((line) => line.kind === kind).map(({ text }) => text))

test('each change is a hunk with three unchanged lines around it', () => {
  const before = numbered(30)
  const after = before.with(10, 'new').toSpliced(20, 2)
  const hunks = diffHunks(before.join('\n'), after.join('\n'))
  expect(hunks.map(({ oldStart, newStart }) => [oldStart, newStart])).toEqual([
    [8, 8],
    [18, 18],
  ])
  expect(of('added', hunks)).toEqual(['new'])
  expect(of('removed', hunks)).toEqual(['line 10', 'line 20', 'line 21'])
  expect(of('same', hunks)).toHaveLength(12)
})

test('equal texts, and texts that differ only in the last newline, have no hunks', () => {
  expect(diffHunks('', '')).toEqual([])
  expect(diffHunks('a\nb', 'a\nb\n')).toEqual([])
})

test('carriage returns and lines that look like patch markers are kept as text', () => {
  const [hunk] = diffHunks('a\r\n\\ No newline at end of file\n', '+ b\n\\ No newline at end of file\n')
  expect(hunk?.lines).toEqual([
    { kind: 'removed', text: 'a\r' },
    { kind: 'added', text: '+ b' },
    { kind: 'same', text: '\\ No newline at end of file' },
  ])
})

test('texts with too many differences are shown as removed, then added', () => {
  const hunks = diffHunks(numbered(3000, 'old').join('\n'), numbered(3000, 'new').join('\n'))
  expect(hunks).toHaveLength(1)
  expect(of('removed', hunks)).toHaveLength(3000)
  expect(of('added', hunks)).toHaveLength(3000)
  expect(of('same', hunks)).toEqual([])
})
