import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { choose } from '../../src/cluster/placement.ts'
import type { NodeFacts, NodeRow } from '../../src/store/nodes.ts'
import { openStore } from '../../src/store/open.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { until } from '../server/process.ts'
import { FULL, startTestServer } from '../server/test-server.ts'
import { startFleet } from './fleet.ts'
import { type NodeProcess, type Processes, startProcesses } from './processes.ts'
import { startWitness, type Witness } from './witness.ts'

/** What a fleet promises, under faults and under load. With full counts only in `npm run test:full`. */

const ROUNDS = Number(process.env.RINGFENCE_ROUNDS ?? 200)
const LEASE_MS = 3000

let postgres: Postgres
beforeAll(async () => {
  if (FULL) postgres = await startPostgres()
})
afterAll(async () => postgres?.stop())

const percentile = (values: readonly number[], share: number): number =>
  values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * share))] ?? 0

describe.runIf(FULL)('races over three replicas', () => {
  test('a quota of 50 under 500 racing creates, and 1,000 racing creates with 50 idempotency keys', {
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

describe.runIf(FULL)('what a fleet costs', () => {
  test('create and exec through another node, and with one node', { timeout: 600_000 }, async () => {
    const fleet = await startFleet(postgres.fresh('costs'), [{ leaseSecs: 10 }, { leaseSecs: 10 }])
    const alone = await startFleet(postgres.fresh('alone'), [{ leaseSecs: 10 }])
    const plain = await startTestServer('', { databaseUrl: postgres.fresh('plain') })
    const on = (at: number) => (method: string, path: string, body: object) =>
      fleet.nodes[at]?.call(method, path, { key: fleet.admin, body })
    type Call = ReturnType<typeof on>
    const one: Call = (method, path, body) => alone.nodes[0]?.call(method, path, { key: alone.admin, body })
    const bare: Call = (method, path, body) => plain.call(method, path, { body })
    const measured = async (call: Call, body: object): Promise<[number, number]> => {
      const [creates, execs]: [number[], number[]] = [[], []]
      for (let at = 0; at < 60; at++) {
        let began = performance.now()
        const id = (await call('POST', '/v1/sandboxes', body))?.json.id
        creates.push(performance.now() - began)
        for (let run = 0; run < 5; run++) {
          began = performance.now()
          await call('POST', `/v1/sandboxes/${id}/exec`, { command: 'true' })
          execs.push(performance.now() - began)
        }
        await call('DELETE', `/v1/sandboxes/${id}`, {})
      }
      return [percentile(creates, 0.5), percentile(execs, 0.5)]
    }
    const placed = { placement: { node: 'n1' } }
    const rows: [string, Call, object][] = [
      ['owner', on(0), placed],
      ['other node', on(1), placed],
      ['one node', one, {}],
      ['no [cluster]', bare, {}],
    ]
    const results = new Map<string, [number, number][]>()
    for (let round = 0; round < 3; round++)
      for (const [name, call, body] of rows)
        results.set(name, [...(results.get(name) ?? []), await measured(call, body)])
    const best = (name: string, at: 0 | 1): number =>
      Math.min(...(results.get(name) ?? []).map((one) => one[at]))
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

describe.runIf(FULL)('faults under load', () => {
  test(`${ROUNDS} rounds of a random fault`, { timeout: 7_200_000 }, async () => {
    const witness = await startWitness()
    const url = postgres.fresh('faults')
    const fleet = await startProcesses(url, { names: ['n1', 'n2', 'n3'], rest: witness.config })
    try {
      const rounds = new FaultRounds(fleet, witness)
      for (let round = 0; round < ROUNDS; round++) await rounds.round(round)
      console.log(rounds.report())
      expect(rounds.old, 'effects of an old epoch after a takeover').toBe(0)
      expect(rounds.lostRecords, 'acknowledged sandboxes without a record').toBe(0)
      expect(percentile(rounds.takeovers, 0.99)).toBeLessThanOrEqual(LEASE_MS + 1000)
      const quota = await openStore({ stateDir: '/tmp', databaseUrl: url })
      const left = await quota.read(
        "SELECT COUNT(*) AS n FROM sandboxes WHERE state NOT IN ('destroyed', 'failed')",
      )
      await quota.close()
      expect(Number(left[0]?.n)).toBe(rounds.alive)
    } finally {
      await fleet.close()
      await witness.close()
    }
  })
})

type Fault = 'kill' | 'stop' | 'database' | 'restart'

class FaultRounds {
  readonly takeovers: number[] = []
  readonly #fleet: Processes
  readonly #witness: Witness
  readonly #counts = new Map<Fault, number>()
  #nodes: NodeProcess[]
  old = 0
  fenced = 0
  lostRecords = 0
  alive = 0

  constructor(fleet: Processes, witness: Witness) {
    this.#fleet = fleet
    this.#witness = witness
    this.#nodes = [...fleet.nodes]
  }

  async round(round: number): Promise<void> {
    const fault = (['kill', 'stop', 'database', 'restart'] as const)[round % 4] as Fault
    this.#counts.set(fault, (this.#counts.get(fault) ?? 0) + 1)
    await this.#revive()
    const victim = round % 3
    const other = this.#nodes[(victim + 1) % 3] as NodeProcess
    const node = this.#nodes[victim] as NodeProcess
    const names = [`r${round}a`, `r${round}b`]
    const ids = await Promise.all(names.map((name) => this.#beating(other, node.name, name)))
    if (fault === 'database') await this.#outage(other, ids, names)
    else await this.#takeover({ fault, node, other, ids, names, victim })
    await Promise.all(ids.map((id) => other.call('DELETE', `/v1/sandboxes/${id}`)))
  }

  /** On a busy machine a node may lose its lease by itself; its engine would start it again. */
  async #revive(): Promise<void> {
    for (const [at, { child, name, dir }] of this.#nodes.entries()) {
      if (child.exitCode === null && child.signalCode === null) continue
      this.fenced++
      this.#nodes[at] = await this.#fleet.start(name, { dir })
    }
  }

  async #beating(through: NodeProcess, node: string, name: string): Promise<string> {
    let id = ''
    const isUp = await until(async () => {
      const body = { network: { mode: 'fetch' }, placement: { node } }
      const made = await through.call('POST', '/v1/sandboxes', { body }).catch(() => undefined)
      id = made?.status === 201 ? made.json.id : ''
      return id !== ''
    })
    if (!isUp) throw new Error(`no sandbox on ${node}`)
    const body = { command: this.#witness.command(name), background: true }
    await through.call('POST', `/v1/sandboxes/${id}/exec`, { body })
    if (!(await until(() => this.#witness.of(name).length > 2))) throw new Error(`${name} does not beat`)
    return id
  }

  /** The database is away for longer than the lease: everything goes on afterwards. */
  async #outage(other: NodeProcess, ids: readonly string[], names: readonly string[]): Promise<void> {
    postgres.freeze()
    await new Promise((resolve) => setTimeout(resolve, LEASE_MS + 500))
    postgres.thaw()
    const counts = names.map((name) => this.#witness.of(name).length)
    const goesOn = await until(() =>
      names.every((name, at) => this.#witness.of(name).length > (counts[at] ?? 0)),
    )
    if (!goesOn) this.lostRecords++
    for (const id of ids)
      await until(async () => (await other.call('GET', `/v1/sandboxes/${id}`)).status === 200)
  }

  async #takeover(parts: {
    readonly fault: Fault
    readonly node: NodeProcess
    readonly other: NodeProcess
    readonly ids: readonly string[]
    readonly names: readonly string[]
    readonly victim: number
  }): Promise<void> {
    const { fault, node, other, ids, names, victim } = parts
    node.child.kill(fault === 'stop' ? 'SIGSTOP' : 'SIGKILL')
    const began = performance.now()
    if (fault === 'restart') this.#nodes[victim] = await this.#fleet.start(node.name, { dir: node.dir })
    for (const id of ids) {
      const isLost = await until(
        async () => (await other.call('GET', `/v1/sandboxes/${id}`)).json?.state === 'failed',
        15_000,
      )
      if (!isLost) this.lostRecords++
    }
    const takenOver = performance.now()
    this.takeovers.push(takenOver - began)
    if (fault === 'stop') {
      node.child.kill('SIGCONT')
      await node.ended
    }
    await new Promise((resolve) => setTimeout(resolve, 300))
    this.old += names.flatMap((name) => this.#witness.of(name)).filter(({ at }) => at > takenOver).length
    if (fault !== 'restart') this.#nodes[victim] = await this.#fleet.start(node.name, { dir: node.dir })
  }

  report(): string {
    const faults = [...this.#counts].map(([name, count]) => `${count} ${name}`).join(', ')
    return [
      `faults: ${faults}`,
      `effects of an old epoch after a takeover: ${this.old}; acknowledged records lost: ${this.lostRecords}; fenced besides: ${this.fenced}`,
      `takeover p50 ${Math.round(percentile(this.takeovers, 0.5))} ms, p99 ${Math.round(percentile(this.takeovers, 0.99))} ms (lease ${LEASE_MS} ms)`,
    ].join('\n')
  }
}
