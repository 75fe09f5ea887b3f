import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openStoreTrail } from '../../src/audit/open-store-trail.ts'
import { StoreTrailReader } from '../../src/audit/store-read.ts'
import { GroupCommit } from '../../src/store/group-commit.ts'
import { MIGRATIONS, migrate } from '../../src/store/migrations.ts'
import { openStore, storeFile } from '../../src/store/open.ts'
import { openPostgres } from '../../src/store/postgres.ts'
import type { Engine, Store, Value } from '../../src/store/sql.ts'
import { openSqlite } from '../../src/store/sqlite.ts'
import { queryTrail } from '../../src/store/trail/query.ts'
import { Feed } from '../../src/supervisor/telemetry/feed.ts'
import { WebhookSecrets } from '../../src/supervisor/telemetry/webhook-secrets.ts'
import { Webhooks } from '../../src/supervisor/telemetry/webhooks.ts'
import { type Postgres, startPostgres } from './postgres.ts'

/** Queries for one tenant use an index, however many records other tenants have. */

let postgres: Postgres
const dirs: string[] = []
beforeAll(async () => {
  postgres = await startPostgres()
})
afterAll(async () => {
  await postgres?.stop()
  for (const dir of dirs) rmSync(dir, { recursive: true, force: true })
})

type Opened = {
  readonly home: string
  readonly engine: () => Promise<Engine>
  readonly open: () => Promise<Store>
}
let count = 0
function testStore(kind: Engine['kind']): Opened {
  const home = mkdtempSync(join(tmpdir(), 'rf-tenants-'))
  dirs.push(home)
  const databaseUrl = kind === 'postgres' ? postgres.fresh(`tenants${count++}`) : undefined
  const engine = async (): Promise<Engine> =>
    databaseUrl === undefined ? openSqlite(storeFile(home)) : openPostgres(databaseUrl)
  return { home, engine, open: () => openStore({ stateDir: home, databaseUrl }) }
}

const insertSandbox = (store: Store, id: string, tenant: string): Promise<unknown> =>
  store.write((tx) =>
    tx.run(
      `INSERT INTO sandboxes (id, tenant, key_id, state, spec, token_hash, instance, epoch, created_at, changed_at)
       VALUES (?, ?, 'k', 'ready', '{}', 'h', 'i', 1, 1, 1)`,
      [id, tenant],
    ),
  )

async function filled({ home }: Opened, store: Store, records: number) {
  for (const [id, tenant] of [
    ['sb_a', 'acme'],
    ['sb_b', 'beta'],
    ['sb_i', 'idle'],
  ] as const)
    await insertSandbox(store, id, tenant)
  const trail = await openStoreTrail({ home, store })
  await Promise.all(
    Array.from({ length: records }, (_, n) => trail.append({ event: 'Exec', sandbox_id: 'sb_a', n })),
  )
  await trail.append({ event: 'Exec', sandbox_id: 'sb_b', n: 0 })
  await trail.append({ event: 'Pruning', n: 0 })
  return trail
}

/** Changes rows as an owner of the file or the database can. */
const dropTriggers = (store: Store): Promise<unknown> =>
  store.write((tx) =>
    tx.run(
      store.kind === 'sqlite' ? 'DROP TRIGGER trail_no_update' : 'DROP TRIGGER trail_append_only ON trail',
    ),
  )

describe.each(['sqlite', 'postgres'] as const)('audit log of several tenants on %s', (kind) => {
  test('every record names the tenant of its sandbox, and a tenant reads only its own records', async () => {
    const at = testStore(kind)
    const store = await at.open()
    const trail = await filled(at, store, 5)
    trail.ownerOf = (id) => (id === 'sb_new' ? 'beta' : undefined)
    await trail.append({ event: 'SandboxState', sandbox_id: 'sb_new', state: 'provisioning' })
    await trail.append({ event: 'SandboxState', sandbox_id: 'sb_unknown', state: 'ready' })
    await trail.close()
    const reader = new StoreTrailReader(at.home, store)
    const own = await reader.query({ tenant: 'beta', limit: 100 })
    expect(own.map(({ sandbox_id, tenant }) => [sandbox_id, tenant])).toEqual([
      ['sb_b', 'beta'],
      ['sb_new', 'beta'],
    ])
    expect(await reader.query({ tenant: 'beta', sandboxId: 'sb_a', limit: 100 })).toEqual([])
    expect((await reader.query({ tenant: 'acme', events: ['Exec'], limit: 100 })).length).toBe(5)
    expect(await reader.verify()).toMatchObject({ ok: true })
    await store.close()
  })

  test('records of an older version get their tenant, stay append-only and verify', async () => {
    const at = testStore(kind)
    const old = new GroupCommit(await at.engine())
    await migrate(old, MIGRATIONS.slice(0, 4))
    // These sandboxes are not in the store yet, so the records have no tenant.
    await old.write((tx) => tx.run('ALTER TABLE trail ADD COLUMN tenant TEXT'))
    const trail = await openStoreTrail({ home: at.home, store: old })
    for (const sandbox_id of ['sb_a', 'sb_f', 'sb_gone']) await trail.append({ event: 'Exec', sandbox_id })
    await trail.close()
    await old.write((tx) => tx.run('ALTER TABLE trail DROP COLUMN tenant'))
    await insertSandbox(old, 'sb_a', 'acme')
    await old.write((tx) => tx.run(`INSERT INTO former_sandboxes (id, tenant) VALUES ('sb_f', 'beta')`))
    await old.close()
    const store = await at.open()
    const rows = await store.read(
      'SELECT sandbox_id, tenant FROM trail WHERE sandbox_id IS NOT NULL ORDER BY seq',
    )
    expect(rows.map(({ tenant }) => tenant)).toEqual(['acme', 'beta', null])
    await expect(store.write((tx) => tx.run('UPDATE trail SET seq = seq'))).rejects.toThrow(/append-only/)
    await expect(store.write((tx) => tx.run('DELETE FROM trail'))).rejects.toThrow(/append-only/)
    const reader = new StoreTrailReader(at.home, store)
    expect(await reader.verify()).toMatchObject({ ok: true })
    await dropTriggers(store)
    for (const [sandbox, tenant] of [
      ['sb_a', 'acme'],
      ['sb_f', 'beta'],
    ]) {
      await store.write((tx) =>
        tx.run('UPDATE trail SET tenant = NULL WHERE sandbox_id = ?', [sandbox ?? '']),
      )
      expect(await reader.verify(), `${sandbox} is hidden from its tenant`).toMatchObject({ ok: false })
      await store.write((tx) =>
        tx.run('UPDATE trail SET tenant = ? WHERE sandbox_id = ?', [tenant ?? '', sandbox ?? '']),
      )
      expect(await reader.verify()).toMatchObject({ ok: true })
    }
    await store.write((tx) => tx.run(`UPDATE trail SET tenant = 'acme' WHERE seq = 1`))
    expect(await reader.verify()).toMatchObject({ ok: false, seq: 1 })
    await store.close()
  })

  test('verification detects a changed tenant', async () => {
    const at = testStore(kind)
    const store = await at.open()
    await (await filled(at, store, 3)).close()
    const reader = new StoreTrailReader(at.home, store)
    await dropTriggers(store)
    for (const [seq, forged] of [
      [1, 'beta'],
      [1, null],
      [4, 'acme'],
    ] as const) {
      const put = (value: Value): Promise<unknown> =>
        store.write((tx) => tx.run('UPDATE trail SET tenant = ? WHERE seq = ?', [value, seq]))
      const [before] = await store.read('SELECT tenant FROM trail WHERE seq = ?', [seq])
      await put(forged)
      expect(await reader.verify(), `${seq} ${forged}`).toMatchObject({ ok: false, seq })
      await put(before?.tenant ?? null)
    }
    expect(await reader.verify()).toMatchObject({ ok: true })
    await store.close()
  })

  test('a webhook without matching records does not read the log again', async () => {
    const at = testStore(kind)
    const store = await at.open()
    const trail = await filled(at, store, 3)
    const reader = new StoreTrailReader(at.home, store)
    const asked: number[] = []
    const query = reader.query.bind(reader)
    reader.query = (one) => {
      asked.push(one.after ?? -1)
      return query(one)
    }
    const feed = new Feed(trail, reader)
    const sent: string[] = []
    const webhooks = new Webhooks({
      store,
      secrets: new WebhookSecrets(Buffer.alloc(32)),
      reader,
      feed,
      newId: (prefix) => `${prefix}_${count++}`,
      post: async (_, body) => {
        sent.push(body)
        return 200
      },
      isInForce: async () => true,
    })
    const principal = { keyId: 'k', tenant: 'idle', scopes: ['read'] } as never
    await webhooks.create(principal, { url: 'https://example.org/', events: [] })
    for (let n = 0; n < 4; n++) {
      await trail.append({ event: 'Exec', sandbox_id: 'sb_a', n })
      const end = await reader.lastSeq()
      await expect.poll(() => asked.length).toBe(n + 1)
      expect(asked.at(-1)).toBeLessThan(end)
    }
    expect(asked).toEqual([...new Set(asked)])
    expect(Math.min(...asked.map((after, n) => after - n))).toBe(asked[0])
    expect(sent).toEqual([])
    await trail.append({ event: 'Exec', sandbox_id: 'sb_i', n: 9 })
    await expect.poll(() => sent.length).toBe(1)
    webhooks.close()
    await trail.close()
    await store.close()
  })

  test('webhooks that fail at the same moment do not start each other and idle ones forever', async () => {
    const at = testStore(kind)
    const store = await at.open()
    const trail = await filled(at, store, 1)
    const reader = new StoreTrailReader(at.home, store)
    let positions = 0
    const position = reader.position.bind(reader)
    reader.position = () => {
      positions++
      // The failure is shown as one; without this, no timer of the test would ever run again.
      if (positions > 2000) throw new Error('too many')
      return position()
    }
    const unanswered: (() => void)[] = []
    const webhooks = new Webhooks({
      store,
      secrets: new WebhookSecrets(Buffer.alloc(32)),
      reader,
      feed: new Feed(trail, reader),
      newId: (prefix) => `${prefix}_${count++}`,
      post: () => new Promise((_, reject) => unanswered.push(() => reject(new Error('no answer')))),
      isInForce: async () => true,
      retryMs: 60_000,
    })
    const principal = { keyId: 'k', tenant: 'idle', scopes: ['read'] } as never
    for (const events of [['Exec'], ['Exec'], ['Pruning'], ['Pruning']])
      await webhooks.create(principal, { url: 'https://example.org/', events })
    await trail.append({ event: 'Exec', sandbox_id: 'sb_i', n: 9 })
    await expect.poll(() => unanswered.length).toBe(2)
    await trail.append({ event: 'Exec', sandbox_id: 'sb_i', n: 10 })
    // Marked as to be served again by now.
    await new Promise((resolve) => setTimeout(resolve, 200))
    for (const fail of unanswered) fail()
    await new Promise((resolve) => setTimeout(resolve, 200))
    expect(positions).toBeLessThan(100)
    webhooks.close()
    await trail.close()
    await store.close()
  })
})

test('SQLite: every statement reads a bounded number of rows along the tenant index', async () => {
  const at = testStore('sqlite')
  const store = await at.open()
  const trail = await filled(at, store, 3000)
  await trail.close()
  const statements: [string, readonly Value[]][] = []
  const spy: Store = {
    kind: store.kind,
    write: (work) => store.write(work),
    guardWrites: () => {},
    close: () => store.close(),
    read: (sql, params = []) => {
      statements.push([sql, params])
      return store.read(sql, params)
    },
  }
  let turns = 0
  const timer = setInterval(() => {}, 1000)
  const turn = (): void => {
    turns++
    if (timer.hasRef()) setImmediate(turn)
  }
  setImmediate(turn)
  const missing = { tenant: 'acme', events: ['Review'], limit: 10 }
  for (const order of ['asc', 'desc'] as const)
    expect(await queryTrail(spy, trail.chain, { ...missing, order })).toEqual([])
  expect(turns, 'others ran in between').toBeGreaterThanOrEqual(4)
  clearInterval(timer.unref())
  await queryTrail(spy, trail.chain, { tenant: 'idle', limit: 10, order: 'desc' })
  await queryTrail(spy, trail.chain, { tenant: 'idle', agentId: 'bot', limit: 10, after: 5 })
  for (const [sql, params] of statements) {
    const plan = await store.read(`EXPLAIN QUERY PLAN ${sql}`, params)
    expect(plan.map(({ detail }) => detail).join('\n')).toMatch(
      /^SEARCH trail USING (COVERING )?INDEX trail_tenant/,
    )
  }
  await store.close()
})

test('SQLite: reading in windows neither loses nor repeats records', async () => {
  const at = testStore('sqlite')
  const store = await at.open()
  const trail = await filled(at, store, 2500)
  await trail.close()
  for (const order of ['asc', 'desc'] as const) {
    const all = await queryTrail(store, trail.chain, { events: ['Exec', 'Pruning'], order, limit: 10_000 })
    const seqs = all.map(({ seq }) => seq)
    expect(new Set(seqs).size).toBe(2502)
    expect(seqs).toEqual([...seqs].sort((a, b) => (order === 'asc' ? a - b : b - a)))
    const some = await queryTrail(store, trail.chain, {
      events: ['Exec', 'Pruning'],
      order,
      after: 100,
      before: 2200,
      limit: 1500,
    })
    expect(some.map(({ seq }) => seq)).toEqual(seqs.filter((seq) => seq > 100 && seq < 2200).slice(0, 1500))
  }
  await store.close()
})
