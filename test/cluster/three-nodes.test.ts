import { afterAll, beforeAll, expect, test } from 'vitest'
import { countOf } from '../backends/persistent-sandbox.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { descendants, isAlive, until } from '../server/process.ts'
import { type NodeProcess, type Processes, startProcesses } from './processes.ts'
import { startWitness, type Witness } from './witness.ts'

/** Three nodes as processes: one is killed, one is stopped for longer than its lease and comes back. */

let postgres: Postgres
let witness: Witness
let fleet: Processes
beforeAll(async () => {
  postgres = await startPostgres()
  witness = await startWitness()
  fleet = await startProcesses(postgres.url, { names: ['n1', 'n2', 'n3'], rest: witness.config })
})
afterAll(async () => {
  await fleet?.close()
  await witness?.close()
  await postgres?.stop()
})

async function beating(name: string, node: string): Promise<string> {
  const body = { network: { mode: 'fetch' }, placement: { node } }
  const [first] = fleet.nodes as [NodeProcess]
  const made = await first.call('POST', '/v1/sandboxes', { body })
  expect(made.status, made.text).toBe(201)
  const command = { command: witness.command(name), background: true }
  const run = await first.call('POST', `/v1/sandboxes/${made.json.id}/exec`, { body: command })
  expect(run.status, run.text).toBeLessThan(300)
  expect(await until(() => witness.of(name).length > 3)).toBe(true)
  return made.json.id
}

test('sandboxes of a killed node are reported as lost, and their quota is released', async () => {
  const [one, two] = fleet.nodes as [NodeProcess, NodeProcess]
  const id = await beating('killed', 'n2')
  const began = performance.now()
  two.child.kill('SIGKILL')
  const lost = await until(async () => (await one.call('GET', `/v1/sandboxes/${id}`)).json.state === 'failed')
  expect(lost).toBe(true)
  console.log(
    `a killed node's sandbox is failed after ${Math.round(performance.now() - began)} ms (lease 3000 ms)`,
  )
  const seen = (await one.call('GET', `/v1/sandboxes/${id}`)).json
  expect(seen.reason).toMatch(/^node-lost/)
  const logs = (await one.call('GET', `/v1/sandboxes/${id}/logs`)).json.items as { state?: string }[]
  expect(logs.at(-1)).toMatchObject({ event: 'SandboxState', state: 'failed' })
  const exec = await one.call('POST', `/v1/sandboxes/${id}/exec`, { body: { command: 'true' } })
  expect(exec.status, exec.text).toBe(409)
  const again = await fleet.start('n2', { dir: two.dir })
  const nodes = (await again.call('GET', '/v1/nodes')).json.items as { name: string }[]
  expect(nodes.find(({ name }) => name === 'n2')).toMatchObject({ state: 'up', epoch: 2 })
})

test('a node that was stopped for longer than its lease runs no sandbox when it continues', async () => {
  const [one, , three] = fleet.nodes as [NodeProcess, NodeProcess, NodeProcess]
  const id = await beating('stopped', 'n3')
  const below = descendants(three.pid)
  expect(below.length).toBeGreaterThan(0)
  expect(countOf(`:${witness.port}/stopped`)).toBeGreaterThan(0)
  three.child.kill('SIGSTOP')
  expect(
    await until(async () => (await one.call('GET', `/v1/sandboxes/${id}`)).json.state === 'failed'),
  ).toBe(true)
  const takenOver = performance.now()
  // The sandbox has ended by its own clock, while its node stands still.
  expect(await until(() => countOf(`:${witness.port}/stopped`) === 0)).toBe(true)
  three.child.kill('SIGCONT')
  expect(await three.ended).toBe(75)
  expect(await until(() => below.filter(isAlive).length === 0)).toBe(true)
  expect(witness.of('stopped').filter(({ at }) => at > takenOver)).toEqual([])
})
