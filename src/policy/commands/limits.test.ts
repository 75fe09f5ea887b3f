// biome-ignore-all lint/suspicious/noTemplateCurlyInString: these are shell lines, not templates
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { compilePolicy } from '../policy.ts'
import { judgeArgv, judgeLine } from './judge.ts'

const policy = compilePolicy({})
const place = { workspace: '/workspace', home: '/home/agent' }
const many = (text: string, times: number): string => text.repeat(times)

/** Lines made to be expensive: each is denied or needs approval, and quickly. */
const HOSTILE: Readonly<Record<string, string>> = {
  backslashes: `'${many('\\', 5000)}'; rm -rf /`,
  parentheses: many('(', 2000),
  'nested braces': many('{a,', 5000),
  'brace product': many('{a,b}', 40),
  'brace sequence': 'echo {1..999}{1..999}',
  'nested substitutions': many('"$(', 140),
  'here-documents': many('<<A ', 2000),
  'a long word': many('a', 20_000),
  'many commands': many('rm x;', 1400),
  'many pipes': `${many('cat x|', 1400)}cat`,
  'many wrappers': `${many('xargs ', 2500)}rm`,
  'many evals': `${many('eval ', 3000)}rm`,
  'nested loops': `${many('for i in a b c d e f g h; do ', 12)}cat $i;${many(' done;', 12)}`,
  'wild paths': `cat /${many('*a', 4000)}`,
  'deep wild paths': `cat ${many('/*', 4000)} x`,
  doubling: `x=aaaaaaaaaa;${many('x=$x$x;', 40)}echo $x`,
  trimming: `x=${many('a', 4000)};echo \${x##*${many('a*', 300)}b}`,
  'many arguments': `cat ${many('a ', 8000)}`,
  'unknown launcher': `zzz ${many('rm ', 4000)}`,
  'many redirections': many('>a ', 5000),
}

describe('limits', () => {
  for (let round = 0; round < 50; round++) judgeLine(policy, 'git log | head; echo "$HOME" > a', place)

  it.each(Object.entries(HOSTILE))('%s', (_, line) => {
    const started = performance.now()
    const { action } = judgeLine(policy, line, place)
    // The target is 50 ms; the tests share their machine with others.
    if (process.env.RINGFENCE_FULL) expect(performance.now() - started).toBeLessThan(250)
    expect(action).not.toBe('allow')
  })

  it.each(['', '   ', '\t\n', 'a\0b'])('refuses %j', (line) =>
    expect(judgeLine(policy, line, place).action).toBe('deny'),
  )

  it.each(['if true; then ls', 'echo $(ls', "echo 'a", 'ls )', 'echo a;;b', 'ls \uFDD0', 'ls \uD800'])(
    'asks about unreadable text: %j',
    (line) => expect(judgeLine(policy, line, place).action).toBe('ask'),
  )

  it('never throws for any text', () => {
    const piece = fc.constantFrom(
      '$(',
      ')',
      '`',
      '"',
      "'",
      '${',
      '}',
      '((',
      '))',
      '|',
      ';',
      '&',
      '<<E',
      '\n',
      'rm',
      '-rf',
      '/',
      '*',
      'x=',
      '[',
      ']',
      '{a,b}',
      'eval',
      'for i in',
      'do',
      'done',
      '\\',
      '~',
      '$x',
      '@(',
    )
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 40 }), fc.boolean(), (pieces, spaced) => {
        const line = pieces.join(spaced ? ' ' : '')
        const { action } = judgeLine(policy, line, place)
        return ['deny', 'ask', 'sandbox', 'allow'].includes(action)
      }),
      { numRuns: 2000 },
    )
  })

  it('judges an argv without a shell: metacharacters are data', () => {
    expect(judgeArgv(policy, ['echo', '$(rm -rf /)', ';', 'rm'], place).action).toBe('allow')
    expect(judgeArgv(policy, ['rm', '-rf', '/'], place).action).toBe('deny')
    expect(judgeArgv(policy, ['sh', '-c', 'rm -rf /'], place).action).toBe('deny')
    expect(judgeArgv(policy, [], place).action).toBe('deny')
  })
  it('keeps the words of an argv that the caller changes later', () => {
    const argv = ['ls', '-la']
    const decision = judgeArgv(policy, argv, place)
    argv[0] = 'rm'
    expect(decision.commands[0]?.argv).toEqual(['ls', '-la'])
  })

  it('judges a line alike after another line was judged in the same directory', () => {
    const judged = (line: string) => judgeLine(policy, line, place)
    const lines = ['cat ../x', 'cat .', 'cd sub && cat ../../x', 'cat .env', 'rm -rf .', 'cat "" ./a/../b']
    const first = lines.map(judged)
    expect(lines.toReversed().map(judged).reverse()).toEqual(first)
  })
})
