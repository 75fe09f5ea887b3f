import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { choose } from '../../src/cluster/placement.ts'
import type { NodeFacts, NodeRow } from '../../src/store/nodes.ts'
import { openStore } from '../../src/store/open.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { type Answer, FULL, startTestServer } from '../server/test-server.ts'
import { startFleet } from './fleet.ts'

/** What a fleet promises, under faults and under load. With full counts only in `npm run test:full`. */

/** How many sandboxes of each kind are measured. */
const TURNS = 120

let postgres: Postgres
beforeAll(async () => {
  if (FULL) postgres = await startPostgres()
})
afterAll(async () => postgres?.stop())

const percentile = (values: readonly number[], share: number): number =>
  values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * share))] ?? 0

describe.runIf(FULL)('races on three replicas', () => {
  test('500 racing creates respect a quota of 50, and 1,000 with 50 idempotency keys create 50 sandboxes', {
    timeout: 600_000,
  }, async () => {
    const rest = '[server]\nmax_sandboxes_per_key = 2000\n[[tenant]]\nname = "fifty"\nmax_sandboxes = 50\n'
    const fleet = await startFleet(
      postgres.fresh('races'),
      Array.from({ length: 3 }, () => ({ rest, leaseSecs: 10 })),
    )
    const ask = (at: number, path: string, options: object) =>
      fleet.nodes[at % 3]?.call('POST', path, options)
    const key = await fleet.key(['create', 'exec', 'read'], 'fifty')
    const made = await Promise.all(
      Array.from({ length: 500 }, (_, at) => ask(at, '/v1/sandboxes', { key, body: {} })),
    )
    const created = made.filter((one) => one?.status === 201)
    console.log(`quota of 50, 500 racing creates on three replicas: ${created.length} created`)
    expect(created.length).toBe(50)
    expect(made.every((one) => one?.status === 201 || one?.status === 429)).toBe(true)
    await Promise.all(
      created.map((one) => fleet.nodes[0]?.call('DELETE', `/v1/sandboxes/${one?.json.id}`, { key })),
    )
    const named = await Promise.all(
      Array.from({ length: 1000 }, (_, at) =>
        ask(at, '/v1/sandboxes', {
          key: fleet.admin,
          body: {},
          headers: { 'idempotency-key': `k${at % 50}` },
        }),
      ),
    )
    const ids = new Map<number, Set<string>>()
    for (const [at, one] of named.entries())
      if (one?.status === 201) ids.set(at % 50, (ids.get(at % 50) ?? new Set()).add(one.json.id))
    const refused = named.filter((one) => one?.status !== 201)
    console.log(
      `1,000 racing creates, 50 keys: ${new Set([...ids.values()].flatMap((one) => [...one])).size} sandboxes, ${refused.length} refused`,
    )
    expect([...ids.values()].every((one) => one.size === 1)).toBe(true)
    expect(ids.size).toBe(50)
    expect(refused.map((one) => one?.text).join('')).toBe('')
    await fleet.close()
  })
})

describe.runIf(FULL)('overhead of a cluster', () => {
  test('create and exec through another node, compared with one node', { timeout: 600_000 }, async () => {
    const fleet = await startFleet(postgres.fresh('costs'), [{ leaseSecs: 10 }, { leaseSecs: 10 }])
    const alone = await startFleet(postgres.fresh('alone'), [{ leaseSecs: 10 }])
    const plain = await startTestServer('', { databaseUrl: postgres.fresh('plain') })
    const on = (at: number) => (method: string, path: string, body: object) =>
      fleet.nodes[at]?.call(method, path, { key: fleet.admin, body })
    type Call = ReturnType<typeof on>
    const one: Call = (method, path, body) => alone.nodes[0]?.call(method, path, { key: alone.admin, body })
    const bare: Call = (method, path, body) => plain.call(method, path, { body })
    const placed = { placement: { node: 'n1' } }
    const rows: [string, Call, object][] = [
      ['owner', on(0), placed],
      ['other node', on(1), placed],
      ['one node', one, {}],
      ['no [cluster]', bare, {}],
    ]
    const times = new Map(rows.map(([name]) => [name, [[], []] as [number[], number[]]]))
    const timed = async <T>(into: number[] | undefined, work: () => Promise<T>): Promise<T> => {
      const began = performance.now()
      const result = await work()
      into?.push(performance.now() - began)
      return result
    }
    // In turns, one sandbox each, so that what else the machine does meets all of them alike.
    for (let turn = 0; turn < TURNS; turn++)
      for (const [name, call, body] of rows.toSorted(() => Math.random() - 0.5)) {
        const [creates, execs] = times.get(name) ?? []
        const id = (await timed(creates, () => call('POST', '/v1/sandboxes', body) as Promise<Answer>)).json
          .id
        for (let run = 0; run < 5; run++)
          await timed(execs, async () => call('POST', `/v1/sandboxes/${id}/exec`, { command: 'true' }))
        await call('DELETE', `/v1/sandboxes/${id}`, {})
      }
    const best = (name: string, at: 0 | 1): number => percentile(times.get(name)?.[at] ?? [], 0.25)
    for (const [name] of rows)
      console.log(`${name}: create ${best(name, 0).toFixed(1)} ms, exec ${best(name, 1).toFixed(1)} ms`)
    const ratio = (a: string, b: string): string =>
      [0, 1].map((at) => (best(a, at as 0 | 1) / best(b, at as 0 | 1)).toFixed(2)).join(' and ')
    console.log(`other node / owner: create and exec ${ratio('other node', 'owner')} (aim ≤ 1.5)`)
    console.log(`one node / no [cluster]: create and exec ${ratio('one node', 'no [cluster]')} (aim ≤ 1.05)`)
    await Promise.all([fleet.close(), alone.close(), plain.close()])
  })

  test('placement with 1,000 nodes and 100,000 sandboxes in the tables', { timeout: 600_000 }, async () => {
    const store = await openStore({ stateDir: '/tmp', databaseUrl: postgres.fresh('placement') })
    await store.write((tx) =>
      tx.run(
        `INSERT INTO sandboxes (id, tenant, key_id, state, spec, token_hash, instance, epoch, created_at, changed_at)
         SELECT 'sb_' || n, 'tenant' || n % 100, 'key' || n % 500, 'ready', '{}', '', 'n' || n % 1000, 1, 0, 0
         FROM generate_series(1, 100000) AS n`,
      ),
    )
    const { countLive } = await import('../../src/store/sandboxes.ts')
    const timed = async (count: number): Promise<number> => {
      const facts = (at: number): NodeFacts => ({
        ...{ cpus: 64, memoryMb: 64_000, diskMb: 1e6, sandboxes: 200, backends: [], labels: {}, failures: 0 },
        used: { cpus: at % 60, memoryMb: 100, diskMb: 100, sandboxes: 100 },
      })
      const nodes = Array.from({ length: count }, (_, at) => ({
        ...({ state: 'up', schedule: 'open', role: 'node' } as Pick<NodeRow, 'state' | 'schedule' | 'role'>),
        id: `n${at}`,
        name: `n${at}`,
        facts: facts(at),
      }))
      const times: number[] = []
      for (let at = 0; at < 300; at++) {
        const began = performance.now()
        choose(nodes, { cpus: 1, memoryMb: 512, diskMb: 100 })
        await store.write(
          (tx) => countLive(tx, { keyId: `key${at}`, tenant: `tenant${at % 100}` }),
          [`tenant ${at}`],
        )
        times.push(performance.now() - began)
      }
      return percentile(times, 0.5)
    }
    const [small, large] = [await timed(100), await timed(1000)]
    console.log(
      `placement and quota: ${large.toFixed(2)} ms with 1,000 nodes, ${small.toFixed(2)} ms with 100 (aim ≤ 5 ms)`,
    )
    expect(large).toBeLessThan(5)
    await store.close()
  })
})
