import { expect, test } from 'vitest'
import { EventQueue } from './event-queue.ts'

test('events are read in order, and dropped above a number or a size', () => {
  const queue = new EventQueue<string | number>()
  for (let event = 0; event < 20_000; event++) queue.add(event)
  expect([queue.next(), queue.next()]).toEqual([0, 1])
  queue.add(-1)
  expect(queue.all().slice(-2)).toEqual([9999, -1])
  expect([queue.isEmpty, queue.next()]).toEqual([true, undefined])
  const long = 'x'.repeat(1024 * 1024 - 2)
  for (let event = 0; event < 9; event++) queue.add(long)
  queue.add('later')
  expect(queue.next()).toBe(long)
  queue.add('later')
  expect(queue.all()).toEqual([long, long, long, 'later'])
  queue.add(long)
  expect(queue.isEmpty).toBe(false)
})
