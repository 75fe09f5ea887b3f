import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { until } from '../server/process.ts'
import { type Fleet, startFleet } from './fleet.ts'

/** A volume that moves to and fro while sandboxes write to it: what was written is there once, whichever node had it. */

const FULL = process.env.RINGFENCE_FULL === '1'
const ROUNDS = FULL ? 20 : 2
const WRITERS = 3

let postgres: Postgres
let fleet: Fleet
beforeAll(async () => {
  postgres = await startPostgres()
  const node = { leaseSecs: 3, cluster: 'wait_secs = 1' }
  fleet = await startFleet(postgres.fresh('race'), [node, node])
})
afterAll(async () => {
  await fleet?.close()
  await postgres?.stop()
})

const ask = (at: number, method: string, path: string, body?: object) =>
  (fleet.nodes[at] as Fleet['nodes'][number]).call(method, path, { key: fleet.admin, ...(body && { body }) })
const home = async (): Promise<string> => (await ask(0, 'GET', '/v1/volumes')).json.items[0].node

test('nothing is lost and nothing is old', { timeout: FULL ? 600_000 : 60_000 }, async () => {
  expect((await ask(0, 'POST', '/v1/volumes', { name: 'log' })).status).toBe(201)
  const written: string[] = []
  let isOn = true
  let turn = 0
  const write = async (at: number): Promise<void> => {
    while (isOn) {
      const made = await ask(at, 'POST', '/v1/sandboxes', { volumes: [{ name: 'log', target: '/data' }] })
      if (made.status !== 201) {
        expect([429, 501, 502]).toContain(made.status)
        await new Promise((resolve) => setTimeout(resolve, 50))
        continue
      }
      const line = `line ${turn++}`
      const done = await ask(at, 'POST', `/v1/sandboxes/${made.json.id}/exec`, {
        command: `echo ${line} >> /data/log`,
      })
      if (done.json?.outcome?.code === 0) written.push(line)
      await ask(at, 'DELETE', `/v1/sandboxes/${made.json.id}`)
      // The volume can move only while nobody has it.
      await new Promise((resolve) => setTimeout(resolve, 300 * Math.random()))
    }
  }
  const writers = Array.from({ length: WRITERS }, (_, at) => write(at % 2))
  let moves = 0
  for (let round = 0; round < ROUNDS; round++) {
    const from = await home()
    await ask(0, 'POST', `/v1/nodes/${from}/drain`, {})
    if (await until(async () => (await home()) !== from, 15_000)) moves++
    await ask(0, 'POST', `/v1/nodes/${from}/uncordon`, {})
    for (const { server } of fleet.nodes) await server.parts.cluster?.node.refresh()
    await new Promise((resolve) => setTimeout(resolve, 500))
  }
  isOn = false
  await Promise.all(writers)
  const { text } = await ask(1, 'GET', '/v1/volumes/log/files?path=/log')
  const lines = text.trim().split('\n')
  process.stderr.write(`${written.length} lines, ${moves} moves\n`)
  expect(moves).toBeGreaterThan(0)
  expect([...lines].sort()).toEqual([...written].sort())
})
