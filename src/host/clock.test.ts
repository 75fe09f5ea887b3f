import { expect, test } from 'vitest'
import { LONGEST_TIMER_MS, longTimeout } from './clock.ts'

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

test('a wait longer than the maximum of a timer does not end at once', async () => {
  let ended = 0
  const timers = [LONGEST_TIMER_MS + 1, 2 ** 31 * 1000, Number.MAX_SAFE_INTEGER].map((ms) =>
    longTimeout(() => ended++, ms).unref(),
  )
  await pause(20)
  for (const timer of timers) timer.clear()
  expect(ended).toBe(0)
})

test('an ordinary wait ends once, or never if it is cleared', async () => {
  let ended = 0
  longTimeout(() => ended++, 1)
  longTimeout(() => ended++, 1).clear()
  await pause(20)
  expect(ended).toBe(1)
})
