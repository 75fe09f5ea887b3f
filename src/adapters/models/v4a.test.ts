import { describe, expect, test } from 'vitest'
import { addedText, applyDiff, parsePatch } from './v4a.ts'

const patch = (...lines: readonly string[]): string =>
  ['*** Begin Patch', ...lines, '*** End Patch'].join('\n')

describe('a patch', () => {
  test('adds, updates, moves and deletes files', () => {
    const steps = parsePatch(
      patch(
        '*** Add File: new.txt',
        '+one',
        '+two',
        '*** Update File: a.txt',
        '*** Move to: b.txt',
        '@@',
        '-x',
        '+y',
        '*** Delete File: old.txt',
      ),
    )
    expect(steps).toEqual([
      { kind: 'add', path: 'new.txt', text: 'one\ntwo\n' },
      { kind: 'update', path: 'a.txt', moveTo: 'b.txt', diff: '@@\n-x\n+y' },
      { kind: 'delete', path: 'old.txt' },
    ])
  })

  test('may lack its frame and have Windows line endings', () => {
    expect(parsePatch('*** Delete File: a\r\n')).toEqual([{ kind: 'delete', path: 'a' }])
  })

  test.each([
    ['empty', patch()],
    ['without a file', patch('+x')],
    ['with a new file whose line has no plus', patch('*** Add File: a', 'x')],
  ])('%s is refused', (_, text) => {
    expect(() => parsePatch(text)).toThrow(/not a V4A patch/)
  })

  test('an empty new file is an empty text', () => {
    expect(addedText('')).toBe('')
  })
})

describe('a diff', () => {
  const text = 'def a():\n  return 1\n\ndef b():\n  return 1\n'

  test('is placed by its context', () => {
    expect(applyDiff('a\nb\nc\n', '@@\n a\n-b\n+B\n c')).toBe('a\nB\nc\n')
  })

  test('is placed after its anchor if the context occurs twice', () => {
    expect(applyDiff(text, '@@ def b():\n-  return 1\n+  return 2')).toBe(
      'def a():\n  return 1\n\ndef b():\n  return 2\n',
    )
  })

  test('applies its hunks in order, each after the previous one', () => {
    expect(applyDiff(text, '@@\n-  return 1\n+  return 3\n@@\n-  return 1\n+  return 4')).toBe(
      'def a():\n  return 3\n\ndef b():\n  return 4\n',
    )
  })

  test('uses the last match at the end of the file, and appends without context', () => {
    expect(applyDiff('x\nx', '@@\n-x\n+y\n*** End of File')).toBe('x\ny')
    expect(applyDiff('a\n', '+b')).toBe('a\nb\n')
  })

  test('ignores trailing spaces, and keeps Windows line endings', () => {
    expect(applyDiff('a  \r\nb\r\n', ' a\n-b\n+c')).toBe('a\r\nc\r\n')
  })

  test('that does not match is refused, and the error shows the missing context', () => {
    expect(() => applyDiff('a\n', '-b\n+c')).toThrow(/not found after line 0:\nb/)
    expect(() => applyDiff('a\n', '@@ class X\n-a')).toThrow(/no line `class X`/)
    expect(() => applyDiff('a\n', '?a')).toThrow(/must begin with/)
  })
})
