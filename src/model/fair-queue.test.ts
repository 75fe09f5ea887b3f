import { expect, test } from 'vitest'
import { FairQueue } from './fair-queue.ts'

test('callers take turns, and each keeps its own order', () => {
  const queue = new FairQueue<string>()
  for (const item of ['a1', 'a2', 'a3', 'b1', 'c1', 'b2']) queue.push(item[0] as string, item)
  expect(queue.size).toBe(6)
  const order: string[] = []
  for (let item = queue.shift(); item !== undefined; item = queue.shift()) order.push(item)
  expect(order).toEqual(['a1', 'b1', 'c1', 'a2', 'b2', 'a3'])
  expect(queue.size).toBe(0)
})

test('whoever has the fewest under way comes first', () => {
  const queue = new FairQueue<string>()
  for (let count = 0; count < 3; count++) queue.started('greedy')
  for (const item of ['g1', 'g2']) queue.push('greedy', item)
  queue.push('honest', 'h1')
  expect(queue.shift()).toBe('h1')
  expect(queue.shift()).toBe('g1')
  queue.push('honest', 'h2')
  queue.ended('honest')
  expect(queue.shift()).toBe('h2')
})

test('drain empties it', () => {
  const queue = new FairQueue<number>()
  queue.push('a', 1)
  queue.push('b', 2)
  expect([...queue.drain()].sort()).toEqual([1, 2])
  expect(queue.shift()).toBeUndefined()
})
