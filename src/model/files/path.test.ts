import { describe, expect, test } from 'vitest'
import { isInWorkspace, isWithin } from './path.ts'

describe('isWithin', () => {
  test.each([
    ['/a', '/a', true],
    ['/a/b', '/a', true],
    ['/ab', '/a', false],
    ['/', '/a', false],
    ['/a', '/', true],
    ['/', '/', true],
    ['a/b', 'a', true],
  ])('%s in %s: %s', (path, directory, expected) => {
    expect(isWithin(path, directory)).toBe(expected)
  })
})

test('a workspace that is the root directory contains nothing', () => {
  expect(isInWorkspace('/srv/x', '/')).toBe(false)
  expect(isInWorkspace('/project/x', '/project')).toBe(true)
})
