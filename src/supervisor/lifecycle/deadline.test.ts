import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { Deadline } from './deadline.ts'

let now = 0
let fired = 0
let deadline: Deadline

/** Moves the fake clock and runs the timers that are due. */
function pass(ms: number): void {
  now += ms
  vi.advanceTimersByTime(ms)
}

beforeEach(() => {
  vi.useFakeTimers()
  now = 1000
  fired = 0
  deadline = new Deadline(
    () => fired++,
    () => now,
  )
})
afterEach(() => {
  deadline.cancel()
  vi.useRealTimers()
})

describe('a deadline', () => {
  test('fires once, and not before its time', () => {
    deadline.set(500)
    pass(499)
    expect([fired, deadline.leftMs]).toEqual([0, 1])
    pass(1)
    expect([fired, deadline.leftMs]).toEqual([1, undefined])
    pass(10_000)
    expect(fired).toBe(1)
  })

  test('without a time never fires', () => {
    expect(deadline.leftMs).toBeUndefined()
    deadline.set(undefined)
    pass(1_000_000)
    expect(fired).toBe(0)
  })

  test('is moved by set, and by extend only to later', () => {
    deadline.set(500)
    deadline.extend(100)
    expect(deadline.leftMs).toBe(500)
    deadline.extend(900)
    expect(deadline.leftMs).toBe(900)
    deadline.set(50)
    pass(50)
    expect(fired).toBe(1)
  })

  test('stops while it is held, and continues with the remaining time', () => {
    deadline.set(500)
    pass(200)
    deadline.hold()
    pass(10_000)
    expect([fired, deadline.leftMs]).toEqual([0, 300])
    deadline.release()
    pass(299)
    expect(fired).toBe(0)
    pass(1)
    expect(fired).toBe(1)
  })

  test('that is set while it is held counts from the release', () => {
    deadline.set(500)
    deadline.hold()
    deadline.set(80)
    pass(1000)
    expect([fired, deadline.leftMs]).toEqual([0, 80])
    deadline.release()
    pass(80)
    expect(fired).toBe(1)
  })

  test('longer than the longest timer of Node still fires at its time', () => {
    const days = 60 * 24 * 3_600_000
    deadline.set(days)
    for (let day = 0; day < 59; day++) pass(24 * 3_600_000)
    expect(fired).toBe(0)
    pass(24 * 3_600_000)
    expect(fired).toBe(1)
  })

  test('that was cancelled never fires', () => {
    deadline.set(10)
    deadline.cancel()
    pass(1000)
    expect([fired, deadline.leftMs]).toEqual([0, undefined])
  })
})
