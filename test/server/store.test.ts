import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openStoreTrail } from '../../src/audit/open-store-trail.ts'
import { StoreTrailReader } from '../../src/audit/store-read.ts'
import { GroupCommit } from '../../src/store/group-commit.ts'
import { MIGRATIONS, type Migration, migrate } from '../../src/store/migrations.ts'
import { openStore, storeFile } from '../../src/store/open.ts'
import { openPostgres } from '../../src/store/postgres.ts'
import type { Engine, Store } from '../../src/store/sql.ts'
import { openSqlite } from '../../src/store/sqlite.ts'
import { type Postgres, startPostgres } from './postgres.ts'
import { FULL } from './test-server.ts'

/** One suite for both databases: acknowledged writes persist, and a failed write of one caller does not affect others. */

let postgres: Postgres
const tempHomes: string[] = []
let count = 0
beforeAll(async () => {
  postgres = await startPostgres()
})
afterAll(async () => {
  await postgres?.stop()
  for (const dir of tempHomes) rmSync(dir, { recursive: true, force: true })
})

const tempHome = (): string => {
  const dir = mkdtempSync(join(tmpdir(), 'rf-store-'))
  tempHomes.push(dir)
  return dir
}

type Kind = {
  readonly name: string
  readonly make: () => {
    readonly open: () => Promise<Store>
    readonly engine: () => Promise<Engine> | Engine
    readonly home: string
  }
}
const KINDS: readonly Kind[] = [
  {
    name: 'sqlite',
    make: () => {
      const home = tempHome()
      return { home, open: () => openStore({ stateDir: home }), engine: () => openSqlite(storeFile(home)) }
    },
  },
  {
    name: 'postgres',
    make: () => {
      const home = tempHome()
      const url = postgres.fresh(`t${count++}`)
      return {
        home,
        open: () => openStore({ stateDir: home, databaseUrl: url }),
        engine: () => openPostgres(url),
      }
    },
  },
]

describe.each(KINDS)('$name', ({ make }) => {
  test('acknowledged writes survive a restart', async () => {
    const { open } = make()
    const store = await open()
    const put = (n: number): Promise<unknown> =>
      store.write((tx) => tx.run('INSERT INTO trail_heads (chain, anchor) VALUES (?, ?)', [`c${n}`, 'x']))
    await Promise.all(Array.from({ length: 500 }, (_, n) => put(n)))
    await store.close()
    const again = await open()
    expect((await again.read('SELECT COUNT(*) AS n FROM trail_heads'))[0]?.n).toBe(500)
    await again.close()
  })

  test('a failed write affects no other write', async () => {
    const store = await make().open()
    const put = (name: string): Promise<unknown> =>
      store.write(async (tx) => {
        await tx.run('INSERT INTO trail_heads (chain, anchor) VALUES (?, ?)', [name, 'x'])
        if (name === 'bad') throw new Error('no')
      })
    const settled = await Promise.allSettled(['a', 'bad', 'b', 'a', 'c'].map(put))
    expect(settled.map(({ status }) => status)).toEqual([
      'fulfilled',
      'rejected',
      'fulfilled',
      'rejected',
      'fulfilled',
    ])
    const rows = await store.read('SELECT chain FROM trail_heads ORDER BY chain')
    expect(rows.map(({ chain }) => chain)).toEqual(['a', 'b', 'c'])
    await store.close()
  })

  test('a migration that is interrupted at any step is completed by the next start', async () => {
    const steps = (MIGRATIONS[0] as Migration).length
    for (let cut = 0; cut <= steps; cut++) {
      const { engine } = make()
      const broken = new GroupCommit(await engine())
      let done = 0
      const crash = (): void => {
        if (done++ === cut) throw new Error('cut off')
      }
      await migrate(broken, MIGRATIONS, crash).catch(() => {})
      await broken.close()
      const store = new GroupCommit(await engine())
      await migrate(store)
      expect((await store.read('SELECT version FROM migrations')).length).toBe(MIGRATIONS.length)
      await store.close()
      if (!FULL && cut > 3) break
    }
  }, 120_000)

  test('two processes that start at once create the schema once', async () => {
    const { open } = make()
    const stores = await Promise.all([open(), open(), open()])
    expect((await stores[0]?.read('SELECT version FROM migrations'))?.length).toBe(MIGRATIONS.length)
    for (const store of stores) await store.close()
  })

  test('a store of a newer version is refused', async () => {
    const { open } = make()
    const store = await open()
    await store.write((tx) => tx.run('INSERT INTO migrations (version, at) VALUES (99, 0)'))
    await store.close()
    await expect(open()).rejects.toMatchObject({ code: 'store-unwritable' })
  })

  test('keeps the audit log: chain, checkpoints, verification, several writers', async () => {
    const { open, home } = make()
    const [one, two] = [await open(), await open()]
    const trails = [
      await openStoreTrail({ home, store: one, checkpointEvery: 20 }),
      await openStoreTrail({ home, store: two }),
    ]
    await Promise.all(
      Array.from({ length: 200 }, (_, n) => trails[n % 2]?.append({ event: 'Exec', sandbox_id: 'sb_1', n })),
    )
    for (const trail of trails) await trail.close()
    const reader = new StoreTrailReader(home, one)
    expect(await reader.verify()).toMatchObject({ ok: true })
    expect((await reader.query({ sandboxId: 'sb_1', limit: 500 })).length).toBe(200)
    await expect(one.write((tx) => tx.run('DELETE FROM trail'))).rejects.toThrow(/append-only/)
    await one.close()
    await two.close()
  })

  test('verification compares every column used by queries with the signed record', async () => {
    const { open, home } = make()
    const store = await open()
    const trail = await openStoreTrail({ home, store })
    const names = { sandbox_id: 'sb_1', agent_id: 'bot', exec_id: 'ex_1' }
    for (let n = 0; n < 5; n++) await trail.append({ event: 'Exec', ...names, n })
    await trail.close()
    const reader = new StoreTrailReader(home, store)
    const [wrong] = await store.read('SELECT time FROM trail WHERE seq = 2')
    const columns = {
      event: 'Exec',
      sandbox_id: 'sb_1',
      agent_id: 'bot',
      exec_id: 'ex_1',
      time: wrong?.time as string,
    }
    // The owner of the file or of the database can also drop its triggers.
    await store.write((tx) =>
      store.kind === 'sqlite'
        ? tx.run('DROP TRIGGER trail_no_update')
        : tx.run('DROP TRIGGER trail_append_only ON trail'),
    )
    const put = (column: string, value: string | null): Promise<unknown> =>
      store.write((tx) =>
        value === null
          ? tx.run(`UPDATE trail SET ${column} = NULL WHERE seq = 2`)
          : tx.run(`UPDATE trail SET ${column} = ? WHERE seq = 2`, [value]),
      )
    for (const [column, value] of Object.entries(columns))
      for (const forged of ['other', ...(column === 'event' || column === 'time' ? [] : [null])]) {
        await put(column, forged)
        const verdict = await reader.verify()
        expect(verdict, column).toMatchObject({ ok: false, seq: 2 })
        expect((verdict as { problem: string }).problem).toContain('which queries use')
        await put(column, value)
      }
    expect(await reader.verify()).toMatchObject({ ok: true })
    const forgery = `INSERT INTO trail (chain, seq, time, event, line) SELECT chain, -1, time, event, line FROM trail WHERE seq = 2`
    await store.write((tx) => tx.run(forgery))
    expect(await reader.verify(), 'a record before the first').toMatchObject({ ok: false })
    await store.close()
  })

  test.runIf(FULL)('5,000 acknowledged records per second', async () => {
    const { open, home } = make()
    const store = await open()
    const trail = await openStoreTrail({ home, store })
    let next = 0
    const start = performance.now()
    const client = async (): Promise<void> => {
      while (next < 20_000) await trail.append({ event: 'Exec', sandbox_id: 'sb_1', n: next++ })
    }
    await Promise.all(Array.from({ length: 64 }, client))
    const rate = next / ((performance.now() - start) / 1000)
    console.log(`${Math.round(rate)} acknowledged records a second`)
    await trail.close()
    await store.close()
    expect(rate).toBeGreaterThan(5000)
  })
})
