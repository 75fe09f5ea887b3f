import { afterAll, beforeAll, expect, test } from 'vitest'
import { FULL, startTestServer, type TestServer } from './test-server.ts'

/** Many clients at once, each with a model of its sandboxes: the server always agrees with the model, without a 500. */

const CLIENTS = 64
const SEQUENCES = FULL ? 20_000 : 300
/** Every n-th sandbox runs on a real backend; the others on `mock`, which differs only below the supervisor. */
const REAL = FULL ? 20 : 10

let home: TestServer
beforeAll(async () => {
  const tenants = Array.from(
    { length: CLIENTS },
    (_, n) => `[[tenant]]\nname = "t${n}"\nbackends = ["bubblewrap", "mock"]\n`,
  )
  home = await startTestServer(
    `[server]\nrequests_per_second = 1000000\nmax_sandboxes = 5000\nmax_waiting = 5000\n${tenants.join('')}`,
  )
})
afterAll(() => home.close())

type Own = { readonly id: string; state: 'ready' | 'paused' | 'destroyed' }

/** A seeded random generator, so that a failure can be repeated. */
function random(seed: number): () => number {
  let state = seed
  return () => {
    state = (Math.imul(state ^ (state >>> 15), 2_246_822_507) + 0x6d2b79f5) | 0
    return ((state ^ (state >>> 13)) >>> 0) / 2 ** 32
  }
}

test(`${SEQUENCES} random request sequences of ${CLIENTS} tenants: answers match the model, and no sandbox is left`, async () => {
  const keys = await Promise.all(
    Array.from({ length: CLIENTS }, (_, n) => home.key(['create', 'exec', 'read'], `t${n}`)),
  )
  const foreign: string[] = []
  let next = 0
  const client = async (key: string): Promise<void> => {
    for (let seed = next++; seed < SEQUENCES; seed = next++) await sequence(key, seed, foreign)
  }
  await Promise.all(keys.map(client))
  expect(home.server.parts.supervisor.live).toBe(0)
  expect((await home.call('GET', '/v1/audit/verify')).json).toMatchObject({ ok: true })
}, 3_600_000)

async function sequence(key: string, seed: number, foreign: string[]): Promise<void> {
  const chance = random(seed)
  const own: Own[] = []
  const steps: string[] = []
  const call = async (method: string, path: string, body: unknown, wanted: number): Promise<unknown> => {
    const answer = await home.call(method, path, { key, ...(body === undefined ? {} : { body }) })
    expect(answer.status, `seed ${seed}: ${steps.join(' ')}: ${answer.text}`).toBe(wanted)
    return answer.json
  }
  const backend = seed % REAL === 0 ? 'bubblewrap' : 'mock'
  const make = async (): Promise<void> => {
    const made = (await call('POST', '/v1/sandboxes', { backend }, 201)) as { id: string }
    own.push({ id: made.id, state: 'ready' })
    if (foreign.length < 64) foreign.push(made.id)
  }
  await make()
  for (let step = 0; step < 6; step++) {
    const one = own[Math.floor(chance() * own.length)] as Own
    const at = `/v1/sandboxes/${one.id}`
    const alive = one.state === 'ready'
    const pausable = backend === 'bubblewrap'
    const action = Math.floor(chance() * 9)
    steps.push(`${action}${alive ? '' : '†'}`)
    if (action === 0) await make()
    else if (action === 1) await call('POST', `${at}/exec`, { argv: ['true'] }, alive ? 200 : 409)
    else if (action === 2) {
      expect(await call('DELETE', at, undefined, 200)).toMatchObject({ state: 'destroyed', reason: 'killed' })
      one.state = 'destroyed'
    } else if (action === 3)
      expect(await call('GET', at, undefined, 200)).toMatchObject({ id: one.id, state: one.state })
    else if (action === 4)
      await call('POST', `${at}/timeout`, { timeout_ms: 60_000 }, one.state === 'destroyed' ? 409 : 200)
    else if (action === 5) {
      await call('POST', `${at}/pause`, {}, alive ? (pausable ? 200 : 501) : 409)
      if (alive && pausable) one.state = 'paused'
    } else if (action === 6) {
      await call('POST', `${at}/resume`, {}, one.state === 'paused' ? 200 : 409)
      if (one.state === 'paused') one.state = 'ready'
    } else if (action === 7) {
      const list = (await call('GET', '/v1/sandboxes?limit=200', undefined, 200)) as {
        items: { id: string; state: string }[]
      }
      for (const mine of own)
        expect(list.items.find(({ id }) => id === mine.id)?.state ?? mine.state).toBe(mine.state)
    } else {
      const other = foreign.find((id) => own.every((mine) => mine.id !== id))
      if (other) {
        const answer = await home.call('DELETE', `/v1/sandboxes/${other}`, { key: await strangerKey() })
        expect(answer.status).toBe(404)
      }
    }
  }
  for (const one of own) await call('DELETE', `/v1/sandboxes/${one.id}`, undefined, 200)
}

let stranger: Promise<string> | undefined
const strangerKey = (): Promise<string> => {
  stranger ??= home.key(['create', 'exec', 'read'], 'stranger')
  return stranger
}
