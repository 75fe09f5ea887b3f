import { expect, test } from 'vitest'
import { exceededBy } from './json.ts'

const LIMITS = { depth: 3, values: 6 }

test.each([
  ['[[[1]]]', undefined],
  ['[[[[1]]]]', 'depth'],
  ['{"a":{"b":[{}]}}', 'depth'],
  ['[1,2,3,4,5]', undefined],
  ['[1,2,3,4,5,6]', 'values'],
  ['[[],[],[]]', 'values'],
  ['[1,2,3]', undefined],
  ['"[[[[,,,,,,,,{\\"[[[["', undefined],
  ['["\\\\",[1,2]]', undefined],
  ['', undefined],
])('%s', (text, exceeded) => expect(exceededBy(text, LIMITS)).toBe(exceeded))
