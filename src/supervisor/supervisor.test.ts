import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { STATES } from '../model/api/sandboxes.ts'
import { SandboxError } from '../model/errors.ts'
import { openStore } from '../store/open.ts'
import { listSandboxes } from '../store/sandboxes.ts'
import type { Store } from '../store/sql.ts'
import type { Principal } from './access/keys.ts'
import { Approvals } from './approvals/approvals.ts'
import { ENDED, isEnded, mayMove, NEXT, type State } from './lifecycle/lifecycle.ts'
import type { OpenSandbox } from './open-sandbox.ts'
import { Supervisor } from './supervisor.ts'
import { Metrics } from './telemetry/metrics.ts'

const FULL = process.env.RINGFENCE_FULL === '1'
const me: Principal = { keyId: 'k', tenant: 't', scopes: ['create', 'exec', 'read'] }

/**
 * FAKE of an open sandbox: a test can lose, freeze and count it, which is not possible with a real one. Real sandboxes are
 * tested in test/server.
 */
class World {
  readonly open = new Set<string>()
  readonly lose = new Map<string, (why: string) => void>()
  failNext = false

  live(id: string): OpenSandbox {
    if (this.failNext) {
      this.failNext = false
      throw new SandboxError('launch-failed', 'it did not start')
    }
    this.open.add(id)
    const ended = new Promise<string>((resolve) => this.lose.set(id, resolve))
    const live = {
      id,
      backend: 'stand-in',
      level: 'os',
      plan: { cwd: '/', limits: {}, network: { mode: 'offline', allowHosts: [] } },
      ended,
      recorded: async () => {},
      layers: async () => [],
      pause: async () => {},
      resume: async () => {},
      close: async () => void this.open.delete(id),
      spawn: async () => ({
        execId: `ex_${id}`,
        pid: 1,
        decision: {},
        result: Promise.resolve({ outcome: { kind: 'exited', code: 0 }, durationMs: 1 }),
      }),
    }
    return live as unknown as OpenSandbox
  }
}

let ids = 0
function begin(store: Store, world: World, epoch: number, instance = 'i1'): Supervisor {
  const trail = { append: async () => {} }
  const newId = (prefix: string): string => `${prefix}_${++ids}`
  return new Supervisor({
    store,
    trail,
    instance: { id: instance, epoch, release: () => {} },
    newId,
    open: async (_, { id }) => world.live(id ?? newId('sb')),
    judge: () => {},
    assertPermitted: () => {},
    assertFreeSpace: () => {},
    approvals: new Approvals({
      store,
      trail,
      newId,
      instance,
      timeoutMs: () => 1000,
      isApprovedHost: () => false,
    }),
    metrics: new Metrics(),
    policyHash: () => 'p',
    limits: {
      sandboxes: 1e6,
      sandboxesPerKey: 1e6,
      sandboxesPerTenant: () => Infinity,
      opening: 64,
      waiting: 1e6,
      execs: 64,
      background: 64,
      outputBytes: 2 ** 27,
      defaultTtlMs: 60_000,
    },
  })
}

const dir = mkdtempSync(join(tmpdir(), 'rf-super-'))
let store: Store
beforeAll(async () => {
  store = await openStore({ stateDir: dir })
})
afterAll(async () => {
  await store.close()
  rmSync(dir, { recursive: true, force: true })
})

describe('the state table', () => {
  test('every state can reach an end state, and end states are final', () => {
    for (const state of STATES) {
      if (isEnded(state)) expect(NEXT[state]).toEqual([])
      else expect(reachable(state).some(isEnded)).toBe(true)
    }
    expect(reachable('requested').sort()).toEqual(STATES.filter((state) => state !== 'requested').sort())
    expect(mayMove('destroyed', 'ready')).toBe(false)
  })
})

function reachable(from: State, seen = new Set<State>()): State[] {
  for (const next of NEXT[from]) {
    if (seen.has(next)) continue
    seen.add(next)
    reachable(next, seen)
  }
  return [...seen]
}

/** Operations of callers and of the environment; the reference gives the expected state of each. */
type Op = 'exec' | 'pause' | 'resume' | 'stop' | 'timeout' | 'lost' | 'get'
const OPS: readonly Op[] = ['exec', 'pause', 'resume', 'stop', 'timeout', 'lost', 'get']
type Model = 'ready' | 'paused' | 'destroyed' | 'failed'

/** The reference automaton, written down a second time: the next state and whether the caller is refused. */
function expected(model: Model, op: Op): { readonly next: Model; readonly refused: boolean } {
  const ended = model === 'destroyed' || model === 'failed'
  if (op === 'get') return { next: model, refused: false }
  if (op === 'stop') return { next: ended ? model : 'destroyed', refused: false }
  if (ended) return { next: model, refused: op !== 'lost' }
  if (op === 'lost') return { next: 'failed', refused: false }
  if (op === 'timeout') return { next: model, refused: false }
  if (op === 'resume') return { next: 'ready', refused: model !== 'paused' }
  if (op === 'pause') return { next: 'paused', refused: model !== 'ready' }
  return { next: model, refused: model !== 'ready' }
}

async function perform(supervisor: Supervisor, world: World, id: string, op: Op): Promise<void> {
  if (op === 'exec') await supervisor.exec(me, id, { command: ['true'] })
  else if (op === 'timeout') await supervisor.setTimeout(me, id, 60_000)
  else if (op === 'get') await supervisor.get(me, id)
  else if (op === 'lost') await lost(supervisor, world, id)
  else await supervisor[op](me, id)
}

async function lost(supervisor: Supervisor, world: World, id: string): Promise<void> {
  const { live } = await supervisor.get(me, id)
  world.lose.get(id)?.('it crashed')
  await live?.gone
}

function sequences(length: number): Op[][] {
  if (length === 0) return [[]]
  return sequences(length - 1).flatMap((before) => OPS.map((op) => [...before, op]))
}

describe('every sequence of operations', () => {
  test(`of ${FULL ? 5 : 3} steps matches the reference, and a crash after each step loses nothing`, async () => {
    const world = new World()
    const all = sequences(FULL ? 5 : 3)
    let epoch = 1
    for (let at = 0; at < all.length; at += 343) {
      const supervisor = begin(store, world, epoch++)
      const group = await Promise.all(all.slice(at, at + 343).map((ops) => walk(supervisor, world, ops)))
      // The crash: this supervisor stops here in any state; the next one recovers.
      const next = begin(store, new World(), epoch++)
      await next.recover()
      for (const { id, model } of group) {
        const { row } = await next.get(me, id)
        expect(isEnded(row.state)).toBe(true)
        expect(row.state).toBe(model === 'destroyed' ? 'destroyed' : 'failed')
        expect(row.reason).toBeTruthy()
        await expect(next.exec(me, id, { command: ['true'] })).rejects.toMatchObject({ code: 'wrong-state' })
      }
    }
  }, 600_000)

  async function walk(supervisor: Supervisor, world: World, ops: readonly Op[]) {
    const { row } = await supervisor.create(me, { spec: {} })
    let model: Model = 'ready'
    for (const op of ops) {
      const { next, refused } = expected(model, op)
      const outcome = perform(supervisor, world, row.id, op)
      if (refused)
        await expect(outcome, `${ops.join(' ')}: ${op}`).rejects.toMatchObject({ code: 'wrong-state' })
      else await outcome
      if (!refused) model = next
      const { row: now } = await supervisor.get(me, row.id)
      expect(now.state, `${ops.join(' ')}: after ${op}`).toBe(model)
      expect(world.open.has(row.id)).toBe(model === 'ready' || model === 'paused')
    }
    return { id: row.id, model }
  }
})

describe('a crash at any write', () => {
  /** Accepts the given number of writes, then fails every write. */
  const failing = (left: number): Store => ({
    kind: store.kind,
    read: (sql, params) => store.read(sql, params),
    write: (work) =>
      left-- > 0 ? store.write(work) : Promise.reject(new SandboxError('store-unwritable', 'power')),
    guardWrites: () => {},
    close: async () => {},
  })

  test.each([
    ['create', 'stop'],
    ['create', 'pause', 'resume', 'stop'],
    ['create', 'timeout', 'lost'],
    ['create', 'pause', 'stop'],
  ])('during %s %s %s %s loses no acknowledged step', async (...steps) => {
    for (let writes = 0; writes < 12; writes++) {
      const world = new World()
      const instance = `cut${ids++}`
      const supervisor = begin(failing(writes), world, 1, instance)
      let id: string | undefined
      let acknowledged: string | undefined
      try {
        for (const step of steps.filter(Boolean)) {
          if (step === 'create') id = (await supervisor.create(me, { spec: {} })).row.id
          else await perform(supervisor, world, id as string, step as Op)
          acknowledged = step
        }
      } catch (error) {
        expect(error).toMatchObject({ code: 'store-unwritable' })
      }
      // A create that could not be recorded left nothing open.
      if (acknowledged === undefined) expect(world.open.size).toBe(0)
      const next = begin(store, new World(), 2, instance)
      await next.recover()
      const rows = (await listSandboxes(store, { limit: 1_000_000 })).filter(
        (row) => row.instance === instance,
      )
      expect(rows.filter((row) => !ENDED.includes(row.state as State))).toEqual([])
      if (acknowledged !== undefined) expect(rows.map((row) => row.id)).toContain(id)
      if (acknowledged === 'stop') expect(rows[0]?.state).toBe('destroyed')
    }
  })
})

describe('the supervisor', () => {
  test('does not touch sandboxes of a second instance', async () => {
    const world = new World()
    const theirs = begin(store, world, 1, 'theirs')
    const { row } = await theirs.create(me, { spec: {} })
    await begin(store, new World(), 99, 'ours').recover()
    expect((await theirs.get(me, row.id)).row.state).toBe('ready')
    expect(world.open.has(row.id)).toBe(true)
  })

  test('leaves nothing after a failed create, and its idempotency key can be used again', async () => {
    const world = new World()
    const supervisor = begin(store, world, 1, 'fails')
    const request = { spec: {}, idempotency: { name: 'again', request: 'r' } }
    world.failNext = true
    await expect(supervisor.create(me, request)).rejects.toMatchObject({ code: 'launch-failed' })
    expect(
      (await listSandboxes(store, { limit: 1e6 })).filter(({ instance }) => instance === 'fails'),
    ).toEqual([])
    expect((await supervisor.create(me, request)).row.state).toBe('ready')
  })

  test('destroys a sandbox that is stopped while it is being created', async () => {
    const world = new World()
    let arrived = (): void => {}
    const opening = new Promise<void>((resolve) => {
      arrived = resolve
    })
    let go = (): void => {}
    const gate = new Promise<void>((resolve) => {
      go = resolve
    })
    const supervisor = begin(store, world, 1, 'stopped')
    const slow = world.live.bind(world)
    // The fake opens only when the test says so.
    ;(world as { live: unknown }).live = async (id: string) => {
      arrived()
      await gate
      return slow(id)
    }
    const making = supervisor.create(me, { spec: {} }).catch((error: unknown) => error)
    await opening
    const look = async () => (await supervisor.list(me, { states: ['provisioning'], limit: 10 }))[0]
    let one = await look()
    while (!one) {
      await new Promise((resolve) => setTimeout(resolve, 5))
      one = await look()
    }
    const stopping = supervisor.stop(me, one?.row.id as string)
    go()
    expect((await stopping).row.state).toBe('destroyed')
    expect(await making).toMatchObject({ code: 'wrong-state' })
    expect(world.open.size).toBe(0)
  })

  test('has a limited queue: 429 with a time to retry', async () => {
    const world = new World()
    const supervisor = new Supervisor({
      ...partsOf(world),
      limits: {
        sandboxes: 10,
        sandboxesPerKey: 3,
        sandboxesPerTenant: () => Infinity,
        opening: 1,
        waiting: 1,
        execs: 1,
        background: 64,
        outputBytes: 2 ** 27,
        defaultTtlMs: 1000,
      },
    })
    const results = await Promise.allSettled(
      Array.from({ length: 6 }, () => supervisor.create(me, { spec: {} })),
    )
    const refused = results.flatMap((one) => (one.status === 'rejected' ? [one.reason] : []))
    expect(refused.length).toBeGreaterThan(0)
    for (const error of refused)
      expect(error).toMatchObject({ code: 'too-many-requests', retryAfterSecs: expect.any(Number) })
  })

  test('does not exceed the limit of sandboxes with parallel creates', async () => {
    const world = new World()
    const limits = {
      sandboxes: 10,
      sandboxesPerKey: 1000,
      sandboxesPerTenant: () => Infinity,
      opening: 4,
      waiting: 1000,
      execs: 1,
      background: 64,
      outputBytes: 2 ** 27,
      defaultTtlMs: 60_000,
    }
    const supervisor = new Supervisor({ ...partsOf(world), limits })
    const results = await Promise.allSettled(
      Array.from({ length: 60 }, () => supervisor.create(me, { spec: {} })),
    )
    expect(results.filter(({ status }) => status === 'fulfilled').length).toBe(10)
    expect([...supervisor.all].length).toBe(10)
  })

  const partsOf = (world: World) => {
    const trail = { append: async () => {} }
    const newId = (prefix: string): string => `${prefix}_${++ids}`
    return {
      store,
      trail,
      newId,
      instance: { id: 'full', epoch: 1, release: () => {} },
      open: async (_: unknown, { id }: { readonly id?: string }) => world.live(id ?? newId('sb')),
      judge: () => {},
      assertPermitted: () => {},
      assertFreeSpace: () => {},
      approvals: new Approvals({
        store,
        trail,
        newId,
        instance: 'full',
        timeoutMs: () => 1000,
        isApprovedHost: () => false,
      }),
      metrics: new Metrics(),
      policyHash: () => 'p',
    }
  }

  test('hands out a pooled sandbox once, and creates one if the pool is empty', async () => {
    const world = new World()
    const supervisor = new Supervisor({
      ...partsOf(world),
      limits: {
        sandboxes: 10,
        sandboxesPerKey: 10,
        sandboxesPerTenant: () => Infinity,
        opening: 4,
        waiting: 4,
        execs: 4,
        background: 64,
        outputBytes: 2 ** 27,
        defaultTtlMs: 1000,
      },
      pool: [{ spec: { backend: 'a' }, size: 2 }],
    })
    await supervisor.recover()
    await new Promise((resolve) => setTimeout(resolve, 20))
    const ready = new Set(world.open)
    expect(ready.size).toBe(2)
    const made = await Promise.all([1, 2, 3].map(() => supervisor.create(me, { spec: { backend: 'a' } })))
    const idsMade = made.map(({ row }) => row.id)
    expect(new Set(idsMade).size).toBe(3)
    expect(idsMade.filter((id) => ready.has(id)).length).toBe(2)
    const other = await supervisor.create(me, { spec: { backend: 'a', env: { A: '1' } } })
    expect(ready.has(other.row.id)).toBe(false)
    await supervisor.drain(0)
    expect(world.open.size).toBe(0)
  })
})
