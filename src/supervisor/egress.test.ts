import { expect, test } from 'vitest'
import { ConnectionRecorder } from './egress.ts'

/** Audit records whose writes the test completes or fails. */
function records() {
  const pending: { resolve: () => void; reject: (error: Error) => void }[] = []
  const write = (): Promise<void> => new Promise((resolve, reject) => void pending.push({ resolve, reject }))
  return { pending, write }
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

test('the first connection to a destination waits for its record, the next one does not', async () => {
  const { pending, write } = records()
  const ledger = new ConnectionRecorder()
  const first = ledger.enter('a', write)
  const beside = ledger.enter('a', write)
  expect([first, beside].every((one) => one instanceof Promise)).toBe(true)
  for (const one of pending) one.resolve()
  await Promise.all([first, beside])
  expect(ledger.enter('a', write), 'known').toBeUndefined()
  expect(ledger.enter('b', write), 'another place').toBeInstanceOf(Promise)
  expect(pending).toHaveLength(4)
})

test('after a lost record every connection waits until a record is written again', async () => {
  const { pending, write } = records()
  const ledger = new ConnectionRecorder()
  const first = ledger.enter('a', write)
  pending.shift()?.resolve()
  await first
  expect(ledger.enter('a', write)).toBeUndefined()
  pending.shift()?.reject(new Error('disk full'))
  await turn()
  const second = ledger.enter('a', write)
  expect(second).toBeInstanceOf(Promise)
  pending.shift()?.reject(new Error('disk full'))
  await expect(second).rejects.toThrow('disk full')
  const third = ledger.enter('a', write)
  pending.shift()?.resolve()
  await third
  expect(ledger.enter('a', write)).toBeUndefined()
})

test('the number of pending records is limited', async () => {
  const { pending, write } = records()
  const ledger = new ConnectionRecorder()
  const first = ledger.enter('a', write)
  pending.shift()?.resolve()
  await first
  const entered = Array.from({ length: 70 }, () => ledger.enter('a', write))
  expect(entered.filter((one) => one === undefined)).toHaveLength(64)
  for (const one of pending) one.resolve()
  await Promise.all(entered)
  expect(ledger.enter('a', write)).toBeUndefined()
})
