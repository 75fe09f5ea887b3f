import { expect, test } from 'vitest'
import { endReasonOf, isFailure } from './lifecycle.ts'

test.each([
  ['node lost: node2 does not answer', 'node-lost'],
  ['evicted: The node was low on resource: memory.', 'evicted'],
  ['preempted: by default/other', 'preempted'],
  ['the kernel killed it for memory (OOMKilled): sandbox', 'oom'],
  ['the sandbox ended', 'crashed'],
] as const)('"%s" is reported as a failure', (why, reason) => {
  expect(endReasonOf(why)).toBe(reason)
  expect(isFailure(reason)).toBe(true)
})

test.each(['killed', 'timeout', 'idle', 'drained'] as const)(
  'the end reason %s is not a failure',
  (reason) => {
    expect(isFailure(reason)).toBe(false)
  },
)
