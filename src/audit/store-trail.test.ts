import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { Event } from '../model/event.ts'
import { openStore, storeFile } from '../store/open.ts'
import type { Store } from '../store/sql.ts'
import { loadVerifyKey } from './anchor.ts'
import type { VerifyKey } from './chain.ts'
import { openStoreTrail } from './open-store-trail.ts'
import { checkProof } from './proof.ts'
import { exportTrail } from './read.ts'
import { StoreTrailReader } from './store-read.ts'
import { openTrail } from './trail.ts'

const FULL = process.env.RINGFENCE_FULL === '1'
const event = (n: number): Event => ({
  event: 'Exec',
  sandbox_id: `sb_${n % 3}`,
  agent_id: 'a',
  state: 'ended',
  n,
})

let home = ''
let store: Store
beforeEach(async () => {
  home = mkdtempSync(join(tmpdir(), 'rf-store-trail-'))
  store = await openStore({ stateDir: home })
})
afterEach(async () => {
  await store.close().catch(() => {})
  rmSync(home, { recursive: true, force: true })
})

const append = async (count: number, from = 0): Promise<void> => {
  const trail = await openStoreTrail({ home, store, checkpointEvery: 50 })
  await Promise.all(Array.from({ length: count }, (_, n) => trail.append(event(from + n))))
  await trail.close()
}
/** Removes the triggers, as the owner of the file could. */
const tamper = (...statements: string[]): Promise<void> =>
  store.write(async (tx) => {
    for (const verb of ['update', 'delete']) await tx.run(`DROP TRIGGER IF EXISTS trail_no_${verb}`)
    for (const sql of statements) await tx.run(sql)
  })
const verify = () => new StoreTrailReader(home, store).verify()

describe('the audit log in a store', () => {
  test('is a chain with checkpoints, and verifies after a restart', async () => {
    await append(120)
    await store.close()
    store = await openStore({ stateDir: home })
    await append(10, 120)
    expect(await verify()).toMatchObject({ ok: true, records: 130 + 4 })
  })

  test('imports segment files once, and continues after their last record', async () => {
    const files = await openTrail({ home, checkpointEvery: 10 })
    for (let n = 0; n < 25; n++) await files.append(event(n))
    const before = [...exportTrail(home)]
    const trail = await openStoreTrail({ home, store })
    await expect(files.append(event(99))).rejects.toMatchObject({ code: 'trail-unwritable' })
    await trail.append(event(100))
    await trail.close()
    const lines: string[] = []
    for await (const line of new StoreTrailReader(home, store).lines()) lines.push(line)
    expect(lines.slice(0, before.length)).toEqual(before)
    expect(await verify()).toMatchObject({ ok: true, records: before.length + 2 })
  })

  test('two writers on one store share one chain', async () => {
    const other = await openStore({ stateDir: home })
    const [one, two] = [await openStoreTrail({ home, store }), await openStoreTrail({ home, store: other })]
    await Promise.all(Array.from({ length: 100 }, (_, n) => (n % 2 ? one : two).append(event(n))))
    await Promise.all([one.close(), two.close()])
    await other.close()
    expect(await verify()).toMatchObject({ ok: true, records: 102 })
  })

  test('its rows cannot be changed or removed by SQL statements', async () => {
    await append(3)
    await expect(store.write((tx) => tx.run("UPDATE trail SET line = 'x'"))).rejects.toThrow(/append-only/)
    await expect(store.write((tx) => tx.run('DELETE FROM trail'))).rejects.toThrow(/append-only/)
  })

  test.each<[string, string, number]>([
    ['a changed line', `UPDATE trail SET line = replace(line, '"n":7', '"n":8') WHERE seq = 7`, 7],
    ['a removed record', 'DELETE FROM trail WHERE seq = 7', 7],
    ['a truncated tail', 'DELETE FROM trail WHERE seq > 15', 16],
    ['a moved record', 'UPDATE trail SET seq = seq + 1000 WHERE seq = 3', 3],
    ['an emptied audit log', 'DELETE FROM trail', 0],
    ['a missing head', 'DELETE FROM trail_heads', 0],
  ])('finds %s', async (_, sql, seq) => {
    await append(20)
    await tamper(sql)
    const verdict = await verify()
    expect(verdict.ok).toBe(false)
    if (!verdict.ok && seq > 0) expect(verdict.seq).toBe(seq)
  })

  test('detects a truncated tail with a matching head, from the copy of the head outside', async () => {
    await append(5)
    const [old] = await store.read('SELECT anchor FROM trail_heads')
    await append(5, 5)
    await tamper('DELETE FROM trail WHERE seq > 5', `UPDATE trail_heads SET anchor = '${old?.anchor}'`)
    expect(await verify()).toMatchObject({ ok: false, seq: 6 })
  })

  test('an emptied store is not started again', async () => {
    await append(5)
    await tamper('DELETE FROM trail', 'DELETE FROM trail_heads')
    await expect(openStoreTrail({ home, store })).rejects.toThrow(/no longer contains the audit log/)
  })

  test('a proof is valid without the other records', async () => {
    await append(30)
    const proof = await new StoreTrailReader(home, store).proof(12)
    expect(checkProof(proof, loadVerifyKey(home) as VerifyKey)).toMatchObject({ ok: true, seq: 12 })
  })

  test('acknowledged records are in the file, and the file is private', async () => {
    await append(3)
    expect(
      readFileSync(storeFile(home)).length + readFileSync(`${storeFile(home)}-wal`).length,
    ).toBeGreaterThan(0)
  })

  test.runIf(FULL)('5,000 acknowledged records per second', async () => {
    const trail = await openStoreTrail({ home, store })
    const start = performance.now()
    const count = 20_000
    let next = 0
    const client = async (): Promise<void> => {
      while (next < count) await trail.append(event(next++))
    }
    await Promise.all(Array.from({ length: 64 }, client))
    const rate = count / ((performance.now() - start) / 1000)
    await trail.close()
    console.log(`${Math.round(rate)} records a second from 64 callers`)
    expect(rate).toBeGreaterThan(5000)
  })
})
