import { execFileSync } from 'node:child_process'
import { expect, test } from 'vitest'
import { commandText, shellQuote, shellWord } from './shell-quote.ts'

const WORDS = [
  '',
  'plain',
  "it's",
  "''",
  'two words',
  '$HOME',
  '`id`',
  '\\',
  'a\nb',
  '*',
  '~',
  '-n',
  '"x"',
  '#c',
  'é',
]

test.each(WORDS)('a shell parses the quoted %j back unchanged', (word) => {
  for (const quote of [shellQuote, shellWord])
    expect(execFileSync('/bin/sh', ['-c', `printf '%s' ${quote(word)}`], { encoding: 'utf8' })).toBe(word)
})

test('display text quotes only ambiguous words', () => {
  expect(commandText(['echo', '*.ts', 'a b', "it's"])).toBe("echo *.ts 'a b' 'it'\\''s'")
})
