import { expect, it } from 'vitest'
import { RequestLimits } from './request-limits.ts'

it('makes the next answer when the last one was sent, also if that failed', async () => {
  const limits = new RequestLimits()
  const events: string[] = []
  const answers = ['first', 'second', 'third'].map((name) =>
    limits.inTurn(async () => {
      events.push(`${name} begins`)
      await new Promise((resolve) => setImmediate(resolve))
      events.push(`${name} ends`)
      if (name === 'first') throw new Error('the connection is gone')
    }),
  )
  await Promise.allSettled(answers)
  expect(events).toEqual(['first', 'second', 'third'].flatMap((name) => [`${name} begins`, `${name} ends`]))
})

it('refuses more unanswered requests than it keeps, but always one of any size', () => {
  const limits = new RequestLimits()
  const answered = limits.admit(100 * 1024 * 1024)
  expect(() => limits.admit(20_000)).toThrow('too many requests')
  limits.admit(10)
  answered()
  limits.admit(20_000)
  for (let at = 0; at < 510; at++) limits.admit(1)
  expect(() => limits.admit(1)).toThrow('too many requests')
})
