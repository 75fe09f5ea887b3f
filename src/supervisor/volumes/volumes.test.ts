import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { Event } from '../../model/event.ts'
import { openStore } from '../../store/open.ts'
import type { Store } from '../../store/sql.ts'
import { Volumes } from './volumes.ts'

/** Removing a volume while others ask for it. */

const OWNER = { keyId: 'key_1', tenant: 'acme', scopes: [] }

let dir: string
let store: Store
let volumes: Volumes
/** Called with each record before it is stored. */
let onRecord: (event: Event) => Promise<void> = async () => {}

beforeEach(async () => {
  dir = mkdtempSync(join(tmpdir(), 'ringfence-volumes-'))
  store = await openStore({ stateDir: dir })
  let ids = 0
  volumes = new Volumes({
    store,
    trail: { append: (event) => onRecord(event) },
    dir: join(dir, 'volumes'),
    newId: (prefix) => `${prefix}_${++ids}`,
    limits: () => ({ defaultMb: 1, maxMb: 8, count: 4, totalMb: 16 }),
  })
})
afterEach(async () => {
  onRecord = async () => {}
  await store.close()
  rmSync(dir, { recursive: true })
})

test('a volume that is being removed can be neither mounted nor removed again', async () => {
  const row = await volumes.create(OWNER, { name: 'data' })
  const tries: Promise<unknown>[] = []
  onRecord = async ({ action }) => {
    if (action !== 'remove') return
    onRecord = async () => {}
    const attempts = [volumes.mount(row, 'sb_1', { target: '/data' }), volumes.remove(OWNER, 'data')]
    tries.push(...attempts.map((attempt) => attempt.catch((error: Error) => error.message)))
    await Promise.all(tries)
  }
  await volumes.remove(OWNER, 'data')
  expect(await Promise.all(tries)).toEqual(Array(2).fill('volume `data` is being removed'))
  expect(existsSync(volumes.pathOf(row))).toBe(false)
})

test('a volume that was removed after its record was read cannot be mounted', async () => {
  const row = await volumes.create(OWNER, { name: 'data' })
  await volumes.remove(OWNER, 'data')
  await expect(volumes.mount(row, 'sb_1', { target: '/data' })).rejects.toThrow('is being removed')
})

test('a volume whose files are read or written cannot be removed', async () => {
  const row = await volumes.create(OWNER, { name: 'data' })
  const closed = volumes.opened(row, 'ro')
  await expect(volumes.remove(OWNER, 'data')).rejects.toThrow('its files are being read or written')
  closed()
  await volumes.remove(OWNER, 'data')
})

test('a refused volume does not repeat the other writes of its transaction', async () => {
  await volumes.create(OWNER, { name: 'data' })
  let runs = 0
  const other = store.write(async () => void runs++)
  await expect(volumes.create(OWNER, { name: 'data' })).rejects.toThrow('there is a volume `data` already')
  await other
  expect(runs).toBe(1)
})
