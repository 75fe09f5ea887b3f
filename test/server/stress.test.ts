import { request } from 'node:http'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { FULL, startTestServer, type TestServer } from './test-server.ts'

/** Memory of a server under load, and fairness between tenants. */

const MB = 1024 * 1024
const BUDGET_MB = FULL ? 128 : 8
const SLACK_MB = FULL ? 64 : 24
setFlagsFromString('--expose-gc')
const gc = runInNewContext('gc') as () => void

let home: TestServer
let red: string
let blue: string

beforeAll(async () => {
  const config = `[server]\nkept_output_mb = ${BUDGET_MB}\nmax_sandboxes_per_key = 1000\nmax_background_execs = 80\n`
  home = await startTestServer(config)
  red = await home.key(['create', 'exec', 'read'], 'red')
  blue = await home.key(['create', 'exec', 'read'], 'blue')
})
afterAll(() => home.close())

/** Heap and buffers that are really in use. */
async function inUse(): Promise<number> {
  for (let round = 0; round < 4; round++) {
    gc()
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  const { heapUsed, arrayBuffers } = process.memoryUsage()
  return (heapUsed + arrayBuffers) / MB
}

async function make(key = red): Promise<string> {
  const made = await home.call('POST', '/v1/sandboxes', { key, body: {} })
  expect(made.status, made.text).toBe(201)
  return made.json.id
}

/** Reads an exec stream to its end and keeps nothing of it. */
function stream(id: string, command: string, key = red): Promise<number> {
  return new Promise((resolve, reject) => {
    const { hostname, port } = new URL(home.server.url)
    const headers = {
      authorization: `Bearer ${key}`,
      accept: 'text/event-stream',
      'content-type': 'application/json',
    }
    const path = `/v1/sandboxes/${id}/exec`
    const sent = request({ hostname, port, path, method: 'POST', headers, agent: false }, (answer) => {
      let bytes = 0
      answer.on('data', (chunk: Buffer) => {
        bytes += chunk.length
      })
      answer.on('end', () => resolve(bytes))
      answer.on('error', reject)
    })
    sent.on('error', reject)
    sent.end(JSON.stringify({ command }))
  })
}

/** The commands that a sandbox keeps, without keeping them. */
function sessionsOf(id: string): WeakRef<object>[] {
  const entry = [...home.server.parts.supervisor.all].find((one) => one.id === id)
  return [...(entry?.execs.values() ?? [])].map((session) => new WeakRef(session))
}

async function inParallel(
  count: number,
  width: number,
  work: (at: number) => Promise<unknown>,
): Promise<void> {
  let next = 0
  const worker = async (): Promise<void> => {
    for (let at = next++; at < count; at = next++) await work(at)
  }
  await Promise.all(Array.from({ length: width }, worker))
}

describe('memory of the server', () => {
  test('does not grow with exec streams that were read to the end', async () => {
    const id = await make()
    await inParallel(8, 4, () => stream(id, 'head -c 1000000 /dev/zero'))
    await home.call('DELETE', `/v1/sandboxes/${id}`)
    const before = await inUse()
    const again = await make()
    await inParallel(FULL ? 2000 : 60, 8, async () => {
      expect(await stream(again, 'head -c 1000000 /dev/zero')).toBeGreaterThan(1_333_000)
    })
    const sessions = sessionsOf(again)
    expect(sessions.length).toBeGreaterThan(0)
    await home.call('DELETE', `/v1/sandboxes/${again}`)
    const after = await inUse()
    process.stderr.write(`streams: ${before.toFixed(1)} MiB before, ${after.toFixed(1)} MiB after\n`)
    expect(after - before).toBeLessThan(SLACK_MB)
    const kept = sessions.filter((session) => session.deref())
    expect(kept.length, 'sessions that are still referenced').toBe(0)
  }, 900_000)

  test('stays within its budget with many large outputs, and is released afterwards', async () => {
    const before = await inUse()
    const { output } = home.server.parts.supervisor
    const ids = Array.from({ length: FULL ? 200 : 3 }, () => '')
    await inParallel(ids.length, 4, async (at) => {
      ids[at] = await make()
    })
    const asked: string[] = []
    let most = 0
    await inParallel(ids.length * 32, 8, async (at) => {
      const body = { command: 'head -c 1000000 /dev/zero | tr "\\0" x' }
      const path = `/v1/sandboxes/${ids[at % ids.length]}/exec`
      const { status, json } = await home.call('POST', path, { key: red, body })
      expect([status, json.stdout.length, json.truncated]).toEqual([200, 1_000_000, false])
      if (at % ids.length === 0) asked.push(json.exec_id)
      most = Math.max(most, output.used)
    })
    const meanwhile = await inUse()
    expect(most).toBeLessThanOrEqual(BUDGET_MB * MB + 64 * 1024 * 8)
    expect(meanwhile - before).toBeLessThan(BUDGET_MB + SLACK_MB)
    const old = await home.call('GET', `/v1/sandboxes/${ids[0]}/execs/${asked[0]}`, { key: red })
    expect(old.json).toMatchObject({ state: 'ended', truncated: true, stdout: '' })
    const accept = { accept: 'text/event-stream' }
    const replay = await home.call('GET', `/v1/sandboxes/${ids[0]}/execs/${asked[0]}`, {
      key: red,
      headers: accept,
    })
    expect(replay.text).toMatch(/event: gap\ndata: \{"up_to":\d+\}[\s\S]*event: end/)
    await inParallel(ids.length, 8, (at) => home.call('DELETE', `/v1/sandboxes/${ids[at]}`, { key: red }))
    expect(output.used).toBe(0)
    const after = await inUse()
    process.stderr.write(
      `commands: ${before.toFixed(1)} MiB before, ${meanwhile.toFixed(1)} meanwhile (kept at most ${(most / MB).toFixed(1)}), ${after.toFixed(1)} after\n`,
    )
    expect(after - before).toBeLessThan(SLACK_MB)
  }, 1_800_000)
})

describe('fairness between tenants', () => {
  test('a tenant that fills its slots with sleeping commands does not delay another tenant', async () => {
    const [sleeping, waking] = [await make(red), await make(blue)]
    const sleeps = Array.from({ length: 70 }, () =>
      home.call('POST', `/v1/sandboxes/${sleeping}/exec`, { key: red, body: { command: 'sleep 600' } }),
    )
    while (!(await home.call('GET', '/metrics')).text.includes('ringfence_execs_waiting 6')) {
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
    const ran = await home.call('POST', `/v1/sandboxes/${waking}/exec`, {
      key: blue,
      body: { command: 'true' },
    })
    expect(ran.json).toMatchObject({ outcome: { kind: 'exited', code: 0 } })
    await home.call('DELETE', `/v1/sandboxes/${sleeping}`, { key: red })
    await Promise.all(sleeps)
    await home.call('DELETE', `/v1/sandboxes/${waking}`, { key: blue })
  })

  test('background commands are limited per tenant; another tenant can still start one', async () => {
    const [mine, other] = [await make(red), await make(blue)]
    const begin = (id: string, key: string) =>
      home.call('POST', `/v1/sandboxes/${id}/exec`, { key, body: { command: 'sleep 600', background: true } })
    const answers = await Promise.all(Array.from({ length: 84 }, () => begin(mine, red)))
    expect(answers.filter(({ status }) => status === 202).length).toBe(80)
    const refused = answers.filter(({ status }) => status === 429)
    expect(refused.length).toBe(4)
    expect(refused[0]?.json).toMatchObject({ code: 'too-many-requests' })
    expect((await begin(other, blue)).status).toBe(202)
    await home.call('DELETE', `/v1/sandboxes/${mine}`, { key: red })
    await home.call('DELETE', `/v1/sandboxes/${other}`, { key: blue })
  })
})
