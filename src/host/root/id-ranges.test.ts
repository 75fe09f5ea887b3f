import { describe, expect, test } from 'vitest'
import { freeRanges } from './id-ranges.ts'

const FIRST = 0x7000_0000
const SIZE = 65_536
const files = { users: '', subordinate: '', map: '         0          0 4294967295\n' }

describe('ranges of host ids', () => {
  test('the first belongs to files, all others to sandboxes', () => {
    expect(freeRanges(files)).toEqual({ stored: FIRST, first: FIRST + SIZE, count: 4095 })
  })

  test('avoid users, groups and subordinate ids: the longest run without a gap is taken', () => {
    const subordinate = `ada:100000:65536\nbob:${FIRST + 100 * SIZE + 7}:10\n`
    const users = `root:x:0:0::/:/bin/sh\neve:x:${FIRST + 4000 * SIZE}:1::/:/bin/sh\nlpadmin:x:${FIRST + 50 * SIZE}:\n`
    expect(freeRanges({ ...files, users, subordinate })).toEqual({
      stored: FIRST,
      first: FIRST + 101 * SIZE,
      count: 4000 - 101,
    })
  })

  test.each([
    ['the ids of files are taken', { subordinate: `ada:${FIRST - 1}:2\n` }, /assigned/],
    ['all ids are taken', { subordinate: `ada:${FIRST + SIZE}:${4095 * SIZE}\n` }, /assigned/],
    ['they do not exist in this container', { map: '0 100000 65536\n' }, /do not exist here/],
  ])('do not exist when %s', (_, change, reason) => {
    expect(freeRanges({ ...files, ...change })).toEqual({ reason: expect.stringMatching(reason) })
  })
})
