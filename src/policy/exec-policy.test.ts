import { describe, expect, it } from 'vitest'
import { ExecPolicy } from './exec-policy.ts'

const place = { workspace: '/workspace', home: '/home/agent' }

describe('exec policy', () => {
  it('evaluates lines and argvs with the rules added so far', () => {
    const policy = new ExecPolicy({}, place)
    expect(policy.evaluate('mytool x').action).toBe('sandbox')
    policy.addPrefixRule(['mytool'], 'deny', 'not here')
    expect(policy.evaluate('env mytool x')).toMatchObject({ action: 'deny', reason: 'not here' })
    expect(policy.evaluate(['mytool', 'x']).action).toBe('deny')
  })

  it('a rejected rule changes nothing', () => {
    const policy = new ExecPolicy({}, place)
    expect(() => policy.addPrefixRule(['bash'], 'allow')).toThrow()
    expect(() => policy.addRule({ prefix: ['a'], action: 'deny', match: ['b'] })).toThrow()
    expect(policy.rules).toEqual([])
  })

  it('a saved policy makes the same decisions', () => {
    const policy = new ExecPolicy({ policy: { default_action: 'ask' } }, place)
    policy.addRule({ glob: 'deploy *', action: 'deny', why: 'by hand only', match: ['deploy x'] })
    const again = ExecPolicy.fromJSON(JSON.parse(JSON.stringify(policy)), place)
    for (const line of ['deploy x', 'unknown', 'ls'])
      expect(again.evaluate(line)).toEqual(policy.evaluate(line))
  })

  it.each([null, {}, { version: 1, rules: [] }, { version: 2, rules: [{ nonsense: 1 }] }, { version: 2 }])(
    'never loads %j',
    (saved) => {
      expect(() => ExecPolicy.fromJSON(saved, place)).toThrow()
    },
  )
})
