import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { ACTIONS } from '../../model/decision.ts'
import { compilePolicy } from '../policy.ts'
import { judgeLine } from './judge.ts'

/** Every technique of the corpus in a different form: tests the class of attack, not the single case. */

const PASSES: Readonly<Record<string, readonly string[]>> = {
  deny: ['deny'],
  'deny|ask': ['deny', 'ask'],
  'not-allow': ['deny', 'ask', 'sandbox'],
  'allow|sandbox': ['allow', 'sandbox'],
  'not-deny': ['allow', 'sandbox', 'ask'],
}

const lines = readFileSync(new URL('./variants.txt', import.meta.url), 'utf8').split('\n')
const themes = new Map<string, (readonly [expected: string, line: string])[]>()
let theme = ''
for (const line of lines) {
  if (line.startsWith('# ')) theme = line.slice(2)
  const tab = line.indexOf('\t')
  if (tab === -1) continue
  const list = themes.get(theme) ?? []
  list.push([line.slice(0, tab), line.slice(tab + 1).replaceAll('⏎', '\n')])
  themes.set(theme, list)
}

const policy = compilePolicy({})
const place = { workspace: '/workspace', home: '/home/agent' }

describe.each([...themes])('%s', (_, cases) => {
  it.each(cases)('%s: %s', (expected, line) => {
    const passes = PASSES[expected]
    expect(
      passes,
      `\`${expected}\` is not one of ${Object.keys(PASSES).join(', ')} (${ACTIONS})`,
    ).toBeDefined()
    const { action, reason } = judgeLine(policy, line, place)
    expect(passes, reason).toContain(action)
  })
})

it('contains all themes', () => {
  expect(themes.size).toBeGreaterThan(50)
  expect([...themes.values()].flat().length).toBeGreaterThan(1500)
})
