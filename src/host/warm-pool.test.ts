import { setTimeout as sleep } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { WarmPool } from './warm-pool.ts'

type Item = { readonly name: string; isAlive: boolean; isDiscarded: boolean }

/** A pool that refills at once, with a factory that numbers its items. */
function newPool(size = 1, maxKinds = 16) {
  const made: Item[] = []
  const pool = new WarmPool<Item>({
    size,
    maxKinds,
    refillMs: 0,
    retryMs: 5,
    isUsable: ({ isAlive }) => isAlive,
    discard: async (item) => {
      item.isDiscarded = true
    },
  })
  const make = async (): Promise<Item> => {
    const item = { name: `item-${made.length}`, isAlive: true, isDiscarded: false }
    made.push(item)
    return item
  }
  return { pool, make, made }
}

async function until(condition: () => boolean): Promise<void> {
  for (let tries = 0; tries < 500 && !condition(); tries++) await sleep(2)
  expect(condition()).toBe(true)
}

test('the first caller creates its own item; the next one of the kind gets a prepared item', async () => {
  const { pool, make } = newPool()
  expect(await pool.take('a', make)).toBeUndefined()
  await until(() => pool.ready === 1)
  expect(await pool.take('b', make)).toBeUndefined()
  expect((await pool.take('a', make))?.name).toBe('item-0')
  await until(() => pool.ready === 2)
})

test('waits for an item that is being created, unless `wait` is false', async () => {
  const { pool, make } = newPool()
  let release = (): void => {}
  const slow = async (): Promise<Item> => {
    await new Promise<void>((resolve) => {
      release = resolve
    })
    return make()
  }
  pool.pin('a', 1, slow)
  pool.fill()
  expect(await pool.take('a', undefined, { wait: false })).toBeUndefined()
  const taken = pool.take('a')
  release()
  expect((await taken)?.name).toBe('item-0')
})

test('dead items are discarded, and rejected items stay', async () => {
  const { pool, make, made } = newPool(2)
  pool.pin('a', 2, make)
  pool.fill()
  await until(() => pool.ready === 2)
  expect(await pool.take('a', undefined, { accepts: () => false })).toBeUndefined()
  expect(pool.ready).toBe(2)
  ;(made[0] as Item).isAlive = false
  expect((await pool.take('a'))?.name).toBe('item-1')
  expect(made[0]?.isDiscarded).toBe(true)
})

test('a failed pinned kind is retried, without a delay for the next caller', async () => {
  const { pool, make } = newPool()
  let failures = 2
  pool.pin('a', 1, async () => {
    if (failures-- > 0) throw new Error('not yet')
    return make()
  })
  pool.fill()
  expect(await pool.take('a', undefined, { wait: false })).toBeUndefined()
  await until(() => pool.ready === 1)
})

test('the least recently used kinds are evicted; pinned kinds stay', async () => {
  const { pool, make, made } = newPool(1, 1)
  pool.pin('pinned', 1, make)
  pool.fill()
  await pool.take('a', make)
  await until(() => pool.ready === 2)
  await pool.take('b', make)
  await until(() => made.filter(({ isDiscarded }) => isDiscarded).length === 1)
  expect((await pool.take('pinned', undefined, { wait: false }))?.isAlive).toBe(true)
})

test('clear and close discard everything, including items that are being created', async () => {
  const { pool, make, made } = newPool()
  pool.pin('a', 1, async () => {
    await sleep(10)
    return make()
  })
  pool.fill()
  await pool.clear()
  expect(made.map(({ isDiscarded }) => isDiscarded)).toEqual([true])
  pool.fill()
  await pool.close()
  expect(made.map(({ isDiscarded }) => isDiscarded)).toEqual([true, true])
  pool.fill()
  expect([pool.ready, made.length]).toEqual([0, 2])
})

test('an item is not handed out after the pool was cleared, however long its predecessor takes to close', async () => {
  const items: Item[] = []
  let release = (): void => {}
  const pool = new WarmPool<Item>({
    size: 3,
    refillMs: 0,
    isUsable: ({ isAlive }) => isAlive,
    discard: (item) =>
      new Promise((resolve) => {
        item.isDiscarded = true
        if (item === items[0]) release = resolve
        else resolve()
      }),
  })
  pool.pin('a', 3, async () => {
    const item = { name: `item-${items.length}`, isAlive: true, isDiscarded: false }
    items.push(item)
    return item
  })
  pool.fill()
  await until(() => pool.ready === 3)
  ;(items[0] as Item).isAlive = false
  const taken = pool.take('a', undefined, { wait: false })
  const cleared = pool.clear()
  release()
  expect(await taken).toBeUndefined()
  await cleared
  expect(items.slice(0, 3).map(({ isDiscarded }) => isDiscarded)).toEqual([true, true, true])
})

test('the caller is asked about each item that it would get', async () => {
  const { pool, make, made } = newPool(2)
  pool.pin('a', 2, make)
  pool.fill()
  await until(() => pool.ready === 2)
  ;(made[0] as Item).isAlive = false
  expect(await pool.take('a', undefined, { accepts: ({ name }) => name === 'item-0' })).toBeUndefined()
  expect(made[1]?.isDiscarded).toBe(false)
})
