import { expect, test } from 'vitest'
import { SandboxError } from '../../model/errors.ts'
import { restError } from './errors.ts'

test('an unexpected error is logged, and tells the caller nothing of the host', () => {
  const logged: string[] = []
  const error = Object.assign(new Error("ENOSPC: no space left on device, write '/srv/state/x'"), {
    code: 'ENOSPC',
  })
  expect(restError(error, (line) => logged.push(line))).toEqual({ code: 500, message: 'internal error' })
  expect(logged.join()).toContain('/srv/state/x')
})

test('a known error says what to do, and a full disk has the number that clients expect', () => {
  const error = new SandboxError('resource-exhausted', 'the disk is full', { hint: 'free some space' })
  expect(restError(error, () => {})).toEqual({ code: 507, message: 'the disk is full (free some space)' })
})
