import { connect, createServer, type Server, type Socket } from 'node:net'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterEach, expect, test } from 'vitest'
import { Vault } from '../host/secrets/vault.ts'
import type { Event, Pace } from '../model/event.ts'
import type { Plan } from '../model/plan.ts'
import { ConnectionRecorder, type Egress, egressWith } from './egress.ts'

/** Audit records whose writes the test completes or fails. */
function records() {
  const pending: { resolve: () => void; reject: (error: Error) => void }[] = []
  const write = (): Promise<void> => new Promise((resolve, reject) => void pending.push({ resolve, reject }))
  return { pending, write }
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

test('the first connection to a destination waits for its record, the next one does not', async () => {
  const { pending, write } = records()
  const ledger = new ConnectionRecorder()
  const first = ledger.enter('a', write)
  const beside = ledger.enter('a', write)
  expect([first, beside].every((one) => one instanceof Promise)).toBe(true)
  for (const one of pending) one.resolve()
  await Promise.all([first, beside])
  expect(ledger.enter('a', write), 'known').toBeUndefined()
  expect(ledger.enter('b', write), 'another place').toBeInstanceOf(Promise)
  expect(pending).toHaveLength(4)
})

test('after a lost record every connection waits until a record is written again', async () => {
  const { pending, write } = records()
  const ledger = new ConnectionRecorder()
  const first = ledger.enter('a', write)
  pending.shift()?.resolve()
  await first
  expect(ledger.enter('a', write)).toBeUndefined()
  pending.shift()?.reject(new Error('disk full'))
  await turn()
  const second = ledger.enter('a', write)
  expect(second).toBeInstanceOf(Promise)
  pending.shift()?.reject(new Error('disk full'))
  await expect(second).rejects.toThrow('disk full')
  const third = ledger.enter('a', write)
  pending.shift()?.resolve()
  await third
  expect(ledger.enter('a', write)).toBeUndefined()
})

test('the number of pending records is limited', async () => {
  const { pending, write } = records()
  const ledger = new ConnectionRecorder()
  const first = ledger.enter('a', write)
  pending.shift()?.resolve()
  await first
  const entered = Array.from({ length: 70 }, () => ledger.enter('a', write))
  expect(entered.filter((one) => one === undefined)).toHaveLength(64)
  for (const one of pending) one.resolve()
  await Promise.all(entered)
  expect(ledger.enter('a', write)).toBeUndefined()
})

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

/** The proxy of a sandbox that may reach `a.example`, and a connection to it. */
async function sandboxProxy(
  append: (event: Event, pace?: Pace) => Promise<void>,
): Promise<{ readonly egress: Egress; readonly client: Socket }> {
  const prepared = egressWith({
    trail: { append },
    allowPrivate: ['127.0.0.1'],
    upstreams: [],
    declared: [],
    vault: new Vault({}),
    env: {},
    systemCertificates: () => '',
    nodePreload: () => undefined,
  })({ network: { mode: 'fetch', allowHosts: ['a.example', '127.0.0.1'] } })
  const egress = prepared.start(
    { network: { mode: 'fetch', allowHosts: ['a.example', '127.0.0.1'] } } as unknown as Plan,
    'sb_1',
  )
  const server = await new Promise<Server>((resolve) => {
    const made = createServer({ allowHalfOpen: true }, (socket) => egress.handle(socket))
    made.listen(0, '127.0.0.1', () => resolve(made))
  })
  const client = connect((server.address() as { port: number }).port, '127.0.0.1')
  client.on('error', () => undefined)
  ends.push(
    () => server.close(),
    () => egress.close(),
    () => client.destroy(),
  )
  return { egress, client }
}

const request = (host: string): string => `GET http://${host}/ HTTP/1.1\r\nHost: ${host}\r\n\r\n`

test.each([
  ['a request', request('b.example')],
  ['a tunnel', 'CONNECT b.example:443 HTTP/1.1\r\n\r\n'],
])('%s is refused after its record is written', async (_, bytes) => {
  const { pending, write } = records()
  const { client } = await sandboxProxy(write)
  let heard = ''
  client.on('data', (chunk) => {
    heard += chunk.toString()
  })
  client.write(bytes)
  while (pending.length === 0) await turn()
  for (let i = 0; i < 100; i++) await turn()
  expect(heard).toBe('')
  pending.shift()?.resolve()
  while (heard === '') await turn()
  expect(heard).toMatch(/^HTTP\/1\.1 403 /)
})

test('a flood of refused requests becomes few records, and each request is counted in one', async () => {
  const count = 5000
  const events: Event[] = []
  const { egress, client } = await sandboxProxy(async (event) => void events.push(event))
  let heard = 0
  client.on('data', (chunk) => {
    heard += chunk.toString().split('HTTP/1.1 403 ').length - 1
  })
  for (let i = 0; i < count; i++) client.write(request(i % 10 === 0 ? `b\${i}.example` : 'b.example'))
  client.end()
  await new Promise((resolve) => client.on('close', resolve))
  await egress.close()
  expect(heard).toBeGreaterThan(count * 0.99)
  expect(events.length).toBeLessThan(count / 10)
  const times = events.map(({ count = 1 }) => Number(count))
  expect(times.reduce((sum, one) => sum + one, 0)).toBe(count)
  expect(events).toContainEqual({
    event: 'SandboxViolation',
    sandbox_id: 'sb_1',
    violation_type: 'SsrfBlocked',
    guarantee: 'net.fetch',
    host: 'b.example',
    port: 80,
    details: 'connect to b.example:80 (http): `b.example` is not an allowed host',
    count: (count * 9) / 10 - 8,
  })
})

test('the record of a connection contains the address that was checked', async () => {
  const events: Event[] = []
  const { client } = await sandboxProxy(async (event) => void events.push(event))
  client.write('CONNECT 127.0.0.1:443 HTTP/1.1\r\n\r\n')
  while (events.length === 0) await turn()
  expect(events[0]).toMatchObject({ event: 'Connection', host: '127.0.0.1', address: '127.0.0.1' })
})

test('the latest connections do not keep the heads of their requests in memory', async () => {
  setFlagsFromString('--expose-gc')
  const collect: () => void = runInNewContext('gc')
  const { egress, client } = await sandboxProxy(async () => undefined)
  const used = (): number => {
    collect()
    return process.memoryUsage().heapUsed
  }
  const before = used()
  client.resume()
  const fill = 'x'.repeat(30_000)
  for (let i = 0; i < 1000; i++)
    client.write(`GET http://not_a%host${i}/ HTTP/1.1\r\nHost: b.example\r\nX-Fill: ${fill}\r\n\r\n`)
  client.end()
  await new Promise((resolve) => client.on('close', resolve))
  expect(egress.connections).toHaveLength(1000)
  expect(used() - before).toBeLessThan(10_000_000)
})
