import { get } from 'node:http'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { toE2bId } from '../../src/server/e2b/ids.ts'
import { type NodeProcess, type Processes, startProcesses } from '../cluster/processes.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { until } from '../server/process.ts'
import { configText, noFullCluster, testApi } from './lab.ts'

/** Two servers on one PostgreSQL, whose sandboxes are Pods; one of the servers is killed while it works. */

const MINUTES = 60_000
const SANDBOXES = 8

type Offer = { readonly state: string; readonly backends: readonly string[] }
type Load = { readonly id: string; readonly acknowledged: string[]; readonly execs: string[] }

describe.skipIf(noFullCluster())('two servers under load', () => {
  let postgres: Postgres
  let servers: Processes
  const nodes = new Map<string, NodeProcess>()
  beforeAll(async () => {
    postgres = await startPostgres()
    servers = await startProcesses(postgres.fresh('pods'), { names: ['n1', 'n2'], rest: configText() })
    for (const one of servers.nodes) nodes.set(one.name, one)
    await offered(2)
  }, 4 * MINUTES)
  afterAll(async () => {
    await servers?.close()
    await postgres?.stop()
  }, MINUTES)

  const node = (name: string): NodeProcess => {
    const found = nodes.get(name)
    if (!found) throw new Error(`no server ${name}`)
    return found
  }
  const ask = (name: string, method: string, path: string, body?: object) =>
    node(name).call(method, path, { ...(body && { body }) })

  /** A server offers a backend when it has tried it, and a Pod takes its time. */
  const offered = async (count: number): Promise<void> => {
    const isOffered = async (): Promise<boolean> => {
      const { items } = (await ask('n2', 'GET', '/v1/nodes')).json as { items: Offer[] }
      const up = items.filter(({ state, backends }) => state === 'up' && backends.includes('kubernetes'))
      return up.length >= count
    }
    expect(await until(isOffered, 2 * MINUTES)).toBe(true)
  }

  const created = async (name: string): Promise<Load> => {
    const body = { backend: 'kubernetes', placement: { node: name } }
    const made = await ask(name, 'POST', '/v1/sandboxes', body)
    expect(made.status, made.text).toBe(201)
    return { id: made.json.id, acknowledged: [], execs: [] }
  }

  /** Writes until the server is gone; what was answered with success is noted. */
  const work = async (load: Load, name: string): Promise<void> => {
    for (let turn = 0; ; turn++) {
      const command = `echo ${turn} >> /tmp/log`
      const done = await ask(name, 'POST', `/v1/sandboxes/${load.id}/exec`, { command }).catch(
        () => undefined,
      )
      if (done?.status !== 200) return
      load.acknowledged.push(String(turn))
      load.execs.push(done.json.exec_id)
    }
  }

  const view = async (id: string) => (await ask('n2', 'GET', `/v1/sandboxes/${id}`)).json
  const contentOf = async (id: string): Promise<string[]> => {
    const done = await ask('n2', 'POST', `/v1/sandboxes/${id}/exec`, { command: 'cat /tmp/log' })
    expect(done.status, done.text).toBe(200)
    return done.json.stdout.trim().split('\n')
  }

  /** What a page at a port of a sandbox answers, by E2B's name for it. */
  const page = (url: string, host: string): Promise<{ status: number; text: string }> =>
    new Promise((resolve, reject) => {
      get(url, { headers: { host } }, async (answer) => {
        let text = ''
        for await (const chunk of answer) text += chunk
        resolve({ status: answer.statusCode ?? 0, text })
      }).on('error', reject)
    })

  test('a port of a Pod answers at every server, by its name; the view shows what the Pod has', {
    timeout: 3 * MINUTES,
  }, async () => {
    const body = { backend: 'kubernetes', placement: { node: 'n1' }, public_ports: true }
    const { json: made } = await ask('n2', 'POST', '/v1/sandboxes', body)
    expect(await view(made.id)).toMatchObject({ limits: { cpus: 0.2, memoryMb: 256, diskMb: 256 } })
    const command =
      'echo page > /tmp/index.html; cd /tmp; setsid python3 -m http.server 8081 > /dev/null 2>&1 &'
    expect((await ask('n1', 'POST', `/v1/sandboxes/${made.id}/exec`, { command })).status).toBe(200)
    const host = `8081-${toE2bId(made.id)}.localhost`
    for (const name of ['n1', 'n2']) {
      const isServed = async () => (await page(node(name).url, host)).text === 'page\n'
      expect(await until(isServed, 20_000), (await page(node(name).url, host)).text).toBe(true)
    }
    await ask('n2', 'DELETE', `/v1/sandboxes/${made.id}`)
  })

  test('one continues the sandboxes of the other after it is killed', { timeout: 10 * MINUTES }, async () => {
    const loads: Load[] = []
    for (let made = 0; made < SANDBOXES; made++) loads.push(await created('n1'))
    const lost = await created('n1')
    const working = loads.map((load) => work(load, 'n1'))
    await until(async () => loads.every(({ acknowledged }) => acknowledged.length > 5))
    // One Pod is gone too: its sandbox must not look as if it were there.
    const api = await testApi()
    const { pods } = await api.listPods(`ringfence.dev/sandbox=${lost.id}`)
    const killedAt = Date.now()
    node('n1').child.kill('SIGKILL')
    await api.deletePod(pods[0]?.metadata?.name ?? '', 0)
    await Promise.all(working)
    for (const { id } of loads) {
      const isBack = async (): Promise<boolean> => {
        const { state, generation } = await view(id)
        return state === 'ready' && generation === 2
      }
      expect(await until(isBack, 60_000), JSON.stringify(await view(id))).toBe(true)
    }
    process.stderr.write(`taken over after ${Date.now() - killedAt} ms\n`)
    for (const { id, acknowledged, execs } of loads) {
      expect(await contentOf(id)).toEqual(expect.arrayContaining(acknowledged))
      const logs = JSON.stringify((await ask('n2', 'GET', `/v1/sandboxes/${id}/logs?limit=1000`)).json)
      for (const exec of execs) expect(logs).toContain(exec)
    }
    await until(async () => (await view(lost.id)).state === 'failed', 60_000)
    expect(await view(lost.id)).toMatchObject({
      state: 'failed',
      reason: expect.stringMatching(/Pod is gone/),
    })
    for (const { id } of loads) expect((await ask('n2', 'DELETE', `/v1/sandboxes/${id}`)).status).toBe(200)
  })

  test('one takes over the sandboxes of the other after SIGTERM', { timeout: 5 * MINUTES }, async () => {
    nodes.set('n3', await servers.start('n3'))
    await offered(2)
    const load = await created('n3')
    const file = { command: 'echo kept > /tmp/file' }
    expect((await ask('n3', 'POST', `/v1/sandboxes/${load.id}/exec`, file)).status).toBe(200)
    const leaving = node('n3')
    leaving.child.kill('SIGTERM')
    await leaving.ended
    const isBack = async (): Promise<boolean> => (await view(load.id)).state === 'ready'
    expect(await until(isBack, 30_000), JSON.stringify(await view(load.id))).toBe(true)
    const read = await ask('n2', 'POST', `/v1/sandboxes/${load.id}/exec`, { command: 'cat /tmp/file' })
    expect(read.json).toMatchObject({ stdout: 'kept\n' })
    expect((await ask('n2', 'DELETE', `/v1/sandboxes/${load.id}`)).status).toBe(200)
    const { pods } = await (await testApi()).listPods(`ringfence.dev/sandbox=${load.id}`)
    expect(pods).toEqual([])
  })

  test('one that hangs longer than its lease and wakes up gets nothing back, and ends nothing', {
    timeout: 5 * MINUTES,
  }, async () => {
    nodes.set('n4', await servers.start('n4'))
    await offered(2)
    const { id } = await created('n4')
    const write = (text: string, on: string) =>
      ask(on, 'POST', `/v1/sandboxes/${id}/exec`, { command: `echo ${text} >> /tmp/file` })
    expect((await write('first', 'n4')).status).toBe(200)
    const sleeping = node('n4')
    sleeping.child.kill('SIGSTOP')
    const isTaken = async (): Promise<boolean> => {
      const { state, generation } = await view(id)
      return state === 'ready' && generation === 2
    }
    expect(await until(isTaken, MINUTES), JSON.stringify(await view(id))).toBe(true)
    expect((await write('second', 'n2')).status).toBe(200)
    // What clients send to it now arrives when it wakes up.
    const late = write('late', 'n4').catch(() => undefined)
    await new Promise((resolve) => setTimeout(resolve, 500))
    sleeping.child.kill('SIGCONT')
    expect(await sleeping.ended).toBe(75)
    const answered = (await late)?.status
    const read = await ask('n2', 'POST', `/v1/sandboxes/${id}/exec`, { command: 'cat /tmp/file' })
    // It may have passed the request on to the server that has the sandbox; then it was answered, and done once.
    expect(read.json.stdout).toBe(answered === 200 ? 'first\nsecond\nlate\n' : 'first\nsecond\n')
    expect(await view(id)).toMatchObject({ state: 'ready', generation: 2 })
    const { pods } = await (await testApi()).listPods(`ringfence.dev/sandbox=${id}`)
    expect(pods.length).toBe(1)
    expect((await ask('n2', 'DELETE', `/v1/sandboxes/${id}`)).status).toBe(200)
  })
})
