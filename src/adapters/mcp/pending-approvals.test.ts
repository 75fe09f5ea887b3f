import { expect, test } from 'vitest'
import { PendingApprovals } from './pending-approvals.ts'

test('an answer is valid for the call it was asked for, and only once', () => {
  const pending = new PendingApprovals()
  const args = { command: 'git push' }
  const name = pending.ask('exec', args)
  expect(pending.take([name], 'exec', { command: 'git push --force' })).toBeUndefined()
  expect(pending.take([name], 'write_file', args)).toBeUndefined()
  expect(pending.take(['approve', 'approve-00'], 'exec', args)).toBeUndefined()
  expect(pending.take(['other', name], 'exec', { command: 'git push' })).toBe(name)
  expect(pending.take([name], 'exec', args)).toBeUndefined()
})

test('unanswered questions do not accumulate', () => {
  const pending = new PendingApprovals()
  const names = Array.from({ length: 100 }, (_, n) => pending.ask('exec', { n }))
  expect(names.filter((name, n) => pending.take([name], 'exec', { n }) !== undefined)).toHaveLength(64)
})
