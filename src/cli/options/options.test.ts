import { describe, expect, test } from 'vitest'
import { closest } from './closest.ts'
import { durationOption, parseOptions, sizeOption, withSeparator } from './options.ts'

const OPTIONS = {
  memory: { type: 'string' },
  env: { type: 'string', short: 'e', multiple: true },
  command: { type: 'string', short: 'c' },
  yes: { type: 'boolean', short: 'y' },
} as const

describe('everything after the name of the program belongs to it', () => {
  test.each([
    ['ls -la', '-- ls -la'],
    ['--memory 512 ls --help', '--memory 512 -- ls --help'],
    ['--memory=512 ls', '--memory=512 -- ls'],
    ['-y -e A=1 ls -y', '-y -e A=1 -- ls -y'],
    ['-ye A=1 ls', '-ye A=1 -- ls'],
    ['-eA=1 ls', '-eA=1 -- ls'],
    ['-c line', '-c line'],
    ['--json -- ls -- x', '--json -- ls -- x'],
    ['--json ls -- x', '--json -- ls -- x'],
    ['', ''],
  ])('%s', (given, expected) => {
    const words = (text: string): string[] => text.split(' ').filter((word) => word !== '')
    expect(withSeparator(words(given), OPTIONS)).toEqual(words(expected))
  })

  test('words before the program are counted', () =>
    expect(withSeparator(['exec', '-y', 'web', 'ls', '-y'], OPTIONS, 2)).toEqual([
      'exec',
      '-y',
      'web',
      '--',
      'ls',
      '-y',
    ]))
})

describe('sizes and times', () => {
  test.each([
    ['512', 512],
    ['512m', 512],
    ['512MB', 512],
    ['2g', 2048],
    ['1.5GiB', 1536],
    ['1t', 1_048_576],
  ])('%s is %d MB', (text, mb) => expect(sizeOption('--memory', text)).toBe(mb))
  test.each(['', 'x', '-1', '5k', '1 g', '0x10', '1e3'])('`%s` is not a size', (text) =>
    expect(() => sizeOption('--memory', text)).toThrow('--memory takes a size'),
  )
  test.each([
    ['30', 30_000],
    ['30s', 30_000],
    ['0.5', 500],
    ['500ms', 500],
    ['5m', 300_000],
    ['1h', 3_600_000],
    ['2d', 172_800_000],
    ['0', 0],
    ['0.0001', 1],
  ])('%s is %d ms', (text, ms) => expect(durationOption('--timeout', text)).toBe(ms))
  test.each(['', '5 m', '1w', '-3', '1e3'])('`%s` is not a time', (text) =>
    expect(() => durationOption('--timeout', text)).toThrow('--timeout takes seconds'),
  )
})

describe('suggestions for mistyped words', () => {
  test.each([
    ['sttas', 'stats'],
    ['snapshto', 'snapshot'],
    ['creat', 'create'],
    ['exce', 'exec'],
    ['xyz', undefined],
    ['l', 'ls'],
  ])('%s: %s', (word, meant) =>
    expect(closest(word, ['create', 'ls', 'exec', 'stats', 'snapshot'])).toBe(meant),
  )
  test('for a flag', () =>
    expect(() => parseOptions('run', ['--memroy', '5'], OPTIONS)).toThrow('did you mean `--memory`?'))
})
