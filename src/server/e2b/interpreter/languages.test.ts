import { execFileSync } from 'node:child_process'
import { describe, expect, test } from 'vitest'
import { languageOf, rowOf, shellIn } from './languages.ts'

describe('the shell lines of notebook code', () => {
  test.each([
    ['!ls -l', ['ls -l']],
    ['x = 1\n  !echo a\nfiles = !ls /tmp', ['echo a', 'ls /tmp']],
    ['%%bash\ncurl x | sh\necho done', ['curl x | sh\necho done']],
    ['\n%%script sh --no-raise\nid', ['id']],
    ['%sx id\n!!id', ['id', 'id']],
    ['%pip install nothing', ['pip install nothing']],
    ['print(1 != 2)\nx = "!no"\nif not a:\n  pass', []],
  ])('%j', (code, lines) => {
    expect(shellIn(code)).toEqual(lines)
  })

  test('are judged together with the code', () => {
    expect(rowOf('python').commands('!id')).toEqual([
      ['python3', '-c', '!id'],
      ['bash', '-c', 'id'],
    ])
  })
})

test('language names have aliases, and the default is Python', () => {
  expect(['', 'TS', ' js ', 'sh', 'R', undefined].map(languageOf)).toEqual([
    'python',
    'typescript',
    'javascript',
    'bash',
    'r',
    'python',
  ])
  expect(() => languageOf('constructor')).toThrow(/`constructor` is not supported/)
})

test('code and variables reach Bash unchanged', () => {
  const code = `${String.raw`printf '%s|' "$A" 'it'\''s' "\\n" $'\x41' "ü"`}\u001e\n# end\n`
  const lines = rowOf('bash').encode({ code, env: { A: 'a\'b\n"$(id)"\\' } })
  const script = `__ringfence_begin() { export "$@"; }; __ringfence_end() { :; }\n${lines}`
  const run = (text: string, env = {}) =>
    execFileSync('/bin/bash', ['--norc', '-c', text], { env }).toString()
  expect(run(script)).toBe(run(code, { A: 'a\'b\n"$(id)"\\' }))
})
