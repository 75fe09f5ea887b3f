import { expect, test } from 'vitest'
import { type Refusal, RefusalRecorder } from './refusal-recorder.ts'

type Written = Refusal & { readonly count: number }

function recorder(fails: () => boolean = () => false) {
  const written: Written[] = []
  const write = async (refusal: Refusal, count: number): Promise<void> => {
    if (fails()) throw new Error('disk full')
    written.push({ ...refusal, count })
  }
  const total = (): number => written.reduce((sum, { count }) => sum + count, 0)
  return { refusals: new RefusalRecorder(write), written, total }
}

const refusal = (place: number): Refusal => ({ host: `${place}.example`, port: 80, details: `to ${place}` })

test('a few refusals are recorded one by one, many of one kind in one record', async () => {
  const { refusals, written, total } = recorder()
  for (let i = 0; i < 8; i++) await refusals.note(refusal(1))
  expect(written.map(({ count }) => count)).toEqual(Array(8).fill(1))
  for (let i = 0; i < 10_000; i++) await refusals.note(refusal(1))
  expect(written).toHaveLength(8)
  await refusals.note(refusal(2))
  expect(written, 'another place, at once').toHaveLength(9)
  await refusals.flush()
  expect(written).toHaveLength(10)
  expect(written.at(-1)).toEqual({ ...refusal(1), count: 10_000 })
  expect(total()).toBe(10_009)
  await refusals.flush()
  await refusals.note(refusal(1))
  expect(written, 'in a new interval, at once again').toHaveLength(11)
})

test('the number of records is limited, however many places are asked for, and none is lost', async () => {
  const { refusals, written, total } = recorder()
  for (let round = 0; round < 2; round++)
    for (let place = 0; place < 20_000; place++) await refusals.note(refusal(place))
  await refusals.flush()
  expect(total()).toBe(40_000)
  expect(written.length).toBeLessThan(1000)
  expect(new Set(written.map(({ host }) => host)).size).toBe(257)
  expect(written.find(({ host }) => host === undefined)?.details).toMatch(/more than 256 different refusals/)
})

test('what could not be written is part of the next record', async () => {
  let isFull = true
  const { refusals, written } = recorder(() => isFull)
  for (let i = 0; i < 100; i++) await refusals.note(refusal(1))
  await refusals.flush()
  expect(written).toEqual([])
  isFull = false
  await refusals.flush()
  expect(written).toEqual([{ ...refusal(1), count: 100 }])
  await refusals.flush()
  expect(written).toHaveLength(1)
})
