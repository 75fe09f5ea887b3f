import { fstatSync, mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, describe, expect, test } from 'vitest'
import { GroupCommit } from './group-commit.ts'
import { openSqlite } from './sqlite.ts'

/** When SQLite's commits reach the disk; test/server/store.test.ts has what both databases do. */

const homes: string[] = []
afterAll(() => {
  for (const home of homes) rmSync(home, { recursive: true, force: true })
})

async function storeWith(sync?: (fd: number) => Promise<void>) {
  const home = mkdtempSync(join(tmpdir(), 'rf-sqlite-'))
  homes.push(home)
  const file = join(home, 'store.db')
  const store = new GroupCommit(openSqlite(file, sync))
  await store.write(async (tx) => void (await tx.run('CREATE TABLE notes (text TEXT)')))
  const add = (text: string) =>
    store.write(async (tx) => void (await tx.run('INSERT INTO notes VALUES (?)', [text])))
  return { store, add, log: `${file}-wal` }
}

describe('a commit', () => {
  test('is acknowledged after its write-ahead log was synced, and not before', async () => {
    let release: (() => void) | undefined
    let synced = 0
    const files = new Set<number>()
    const { store, add, log } = await storeWith(async (fd) => {
      files.add(fstatSync(fd).ino)
      if (synced++ > 0) await new Promise<void>((resolve) => (release = resolve))
    })
    let isDone = false
    const done = add('one').then(() => {
      isDone = true
    })
    await sleep(50)
    expect([isDone, synced]).toEqual([false, 2])
    release?.()
    await done
    expect([...files]).toEqual([statSync(log).ino])
    await store.close()
  })

  test('that its first query refuses leaves the store usable', async () => {
    const { store, add } = await storeWith()
    let isRefused = true
    const check = () => {
      if (isRefused) throw new Error('not ours')
    }
    store.guardWrites({ sql: 'SELECT 1', check })
    await expect(add('one')).rejects.toThrow('not ours')
    isRefused = false
    await add('two')
    expect(await store.read('SELECT text FROM notes')).toEqual([{ text: 'two' }])
    await store.close()
  })

  test('that the disk did not store fails for everybody in it, once, and so does every later one', async () => {
    let synced = 0
    const { store, add } = await storeWith(async () => {
      if (++synced === 2) throw Object.assign(new Error('EIO: i/o error, fdatasync'), { code: 'EIO' })
    })
    const results = await Promise.allSettled(['one', 'two', 'three'].map(add))
    for (const result of results)
      expect(result).toMatchObject({ status: 'rejected', reason: { code: 'store-unwritable' } })
    await expect(add('four')).rejects.toMatchObject({ code: 'store-unwritable' })
    expect(synced).toBe(2)
    await store.close()
  })
})

test('the write-ahead log is used again from its beginning while commits go on', async () => {
  const { store, add, log } = await storeWith()
  const commit = async (count: number): Promise<number> => {
    for (let round = 0; round < count; round++) await add('x'.repeat(2000))
    return statSync(log).size
  }
  const each = (await commit(50)) / 50
  expect(await commit(1950)).toBeLessThan(1000 * each)
  await store.close()
})
