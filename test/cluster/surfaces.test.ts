import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { client, get } from '../e2b/kit.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { until } from '../server/process.ts'
import type { Answer, CallOptions } from '../server/test-server.ts'
import { type Fleet, startFleet } from './fleet.ts'

/** Terminals, ports, E2B's API, MCP and webhooks through a node that does not own the sandbox. */

let postgres: Postgres
let fleet: Fleet
beforeAll(async () => {
  postgres = await startPostgres()
  const rest = '[policy]\nallow_interactive = true\n[network]\nallow_private = ["127.0.0.1"]\n'
  fleet = await startFleet(postgres.url, [{ rest }, { rest, role: 'api' }])
})
afterAll(async () => {
  await fleet?.close()
  await postgres?.stop()
})

const urlOf = (at: number): string => fleet.nodes[at]?.server.url ?? ''
const ask = (at: number, method: string, path: string, options: CallOptions = {}): Promise<Answer> =>
  (fleet.nodes[at] as Fleet['nodes'][number]).call(method, path, { key: fleet.admin, ...options })

async function created(body: object = {}): Promise<string> {
  const made = await ask(1, 'POST', '/v1/sandboxes', { body })
  expect(made.status, made.text).toBe(201)
  expect(fleet.nodes[0]?.server.parts.supervisor.has(made.json.id)).toBe(true)
  return made.json.id
}

test('a terminal works through another node', async () => {
  const id = await created()
  const url = `${urlOf(1).replace('http', 'ws')}/v1/sandboxes/${id}/pty?command=cat`
  const socket = new WebSocket(url, { headers: { authorization: `Bearer ${fleet.admin}` } })
  await new Promise((resolve, reject) => socket.once('open', resolve).once('error', reject))
  let said = ''
  socket.on('message', (data) => (said += String(data)))
  socket.send(Buffer.from('typed far away\n'))
  expect(await until(() => said.includes('typed far away'))).toBe(true)
  const ended = new Promise((resolve) => socket.once('close', resolve))
  await ask(1, 'DELETE', `/v1/sandboxes/${id}`)
  await ended
  const refused = new WebSocket(url, { headers: { authorization: 'Bearer rf_wrong' } })
  await expect(
    new Promise((resolve, reject) => refused.once('open', resolve).once('error', reject)),
  ).rejects.toThrow()
})

test('a port works through another node', async () => {
  const id = await created({ network: { mode: 'loopback' } })
  const command = 'python3 -m http.server 8080 --bind 127.0.0.1'
  const run = await ask(1, 'POST', `/v1/sandboxes/${id}/exec`, { body: { command, background: true } })
  expect(run.status, run.text).toBeLessThan(300)
  expect(
    await until(async () => (await ask(1, 'GET', `/v1/sandboxes/${id}/ports/8080/`)).status === 200),
  ).toBe(true)
  expect((await ask(1, 'GET', `/v1/sandboxes/${id}/ports/8080/`)).text).toContain('Directory listing')
  await ask(1, 'DELETE', `/v1/sandboxes/${id}`)
})

/** Answers 421 to everything, with a header that only nodes may send. */
const ANSWERS_421 = `
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(421)
        self.send_header('ringfence-misdirected', '1')
        self.send_header('x-own', 'kept')
        self.end_headers()
        self.wfile.write(b'the program says so')
    do_POST = do_GET
http.server.HTTPServer(('127.0.0.1', 8082), Handler).serve_forever()
`

test('a program on a port may answer 421 itself', async () => {
  const id = await created({ network: { mode: 'loopback' } })
  const path = `/v1/sandboxes/${id}/ports/8082/`
  await ask(1, 'PUT', `/v1/sandboxes/${id}/files?path=/tmp/421.py`, { body: ANSWERS_421 })
  const body = { command: 'python3 /tmp/421.py', background: true }
  const run = await ask(1, 'POST', `/v1/sandboxes/${id}/exec`, { body })
  expect(run.status, run.text).toBeLessThan(300)
  expect(await until(async () => (await ask(0, 'GET', path)).status === 421)).toBe(true)
  for (const [at, method] of [[0, 'GET'] as const, [1, 'GET'] as const, [1, 'POST'] as const]) {
    const answer = await ask(at, method, path)
    expect([answer.status, answer.text]).toEqual([421, 'the program says so'])
    expect([answer.headers.get('x-own'), answer.headers.get('ringfence-misdirected')]).toEqual(['kept', null])
  }
  await ask(1, 'DELETE', `/v1/sandboxes/${id}`)
})

test('signed file URLs work through another node', async () => {
  const { Sandbox } = await client('e2b')
  const apiKey = (await fleet.nodes[0]?.server.parts.keys.create({ e2b: true }))?.secret
  const sandbox = await Sandbox.create({ apiKey, apiUrl: urlOf(1), sandboxUrl: urlOf(1) })
  const upload = await sandbox.uploadUrl('signed.txt', { useSignatureExpiration: 60_000 })
  expect(upload).toContain(`${urlOf(1)}/files?`)
  const form = new FormData()
  form.append('file', new Blob(['by signature']), 'signed.txt')
  const written = await fetch(upload, { method: 'POST', body: form })
  expect(written.status, await written.text()).toBe(200)
  const address = await sandbox.downloadUrl('signed.txt')
  const read = await fetch(address)
  expect([read.status, await read.text()]).toEqual([200, 'by signature'])
  // Signed for reading, and for this file.
  expect((await fetch(address, { method: 'POST', body: 'x' })).status).toBe(404)
  expect((await fetch(address.replace('signed.txt', 'other.txt'))).status).toBe(404)
  expect(await sandbox.kill()).toBe(true)
  expect((await fetch(address)).status).toBe(404)
})

test('the E2B client works through another node: commands, files, a port by host name', async () => {
  const { Sandbox } = await client('e2b')
  const apiKey = (await fleet.nodes[0]?.server.parts.keys.create({ e2b: true }))?.secret
  const options = { apiKey, apiUrl: urlOf(1), sandboxUrl: urlOf(1) }
  const sandbox = await Sandbox.create(options)
  expect((await sandbox.commands.run('echo far')).stdout).toBe('far\n')
  await sandbox.files.write('/home/user/a.txt', 'text')
  expect(await sandbox.files.read('/home/user/a.txt')).toBe('text')
  await sandbox.commands.run('python3 -m http.server 8081', { background: true })
  const host = `8081-${sandbox.sandboxId}.localhost`
  expect(await until(async () => (await get(urlOf(1), host)).status === 200)).toBe(true)
  expect((await get(urlOf(1), host)).text).toContain('a.txt')
  expect(await sandbox.kill()).toBe(true)
})

test('an MCP session of one node is served by another node', async () => {
  const call = async (at: number, body: object, session?: string): Promise<Response> =>
    fetch(`${urlOf(at)}/mcp`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${fleet.admin}`,
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        ...(session ? { 'mcp-session-id': session } : {}),
      },
      body: JSON.stringify({ jsonrpc: '2.0', id: 1, ...body }),
    })
  const params = { protocolVersion: '2025-03-26', capabilities: {}, clientInfo: { name: 't', version: '1' } }
  const hello = await call(1, { method: 'initialize', params })
  const session = hello.headers.get('mcp-session-id') as string
  expect(hello.status, await hello.text()).toBe(200)
  for (const at of [0, 1]) {
    const listed = await call(at, { method: 'tools/list' }, session)
    expect(await listed.text()).toContain('tools')
    expect(listed.status).toBe(200)
  }
})

test('a webhook gets the records of every node, each once', async () => {
  const got: { type: string; data: { sandbox_id?: string; state?: string } }[] = []
  const receiver = createServer((request, response) => {
    let body = ''
    request.on('data', (chunk) => (body += chunk))
    request.on('end', () => {
      got.push(JSON.parse(body))
      response.end()
    })
  })
  await new Promise<void>((resolve) => receiver.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(receiver.address() as AddressInfo).port}/hook`
  const hooks = []
  for (const at of [0, 1, 1])
    hooks.push(await ask(at, 'POST', '/v1/webhooks', { body: { url, events: ['SandboxState'] } }))
  const id = await created()
  await ask(1, 'DELETE', `/v1/sandboxes/${id}`)
  const states = (): string[] =>
    got.filter(({ data }) => data.sandbox_id === id).map(({ data }) => data.state ?? '')
  expect(await until(() => states().filter((state) => state === 'destroyed').length >= hooks.length)).toBe(
    true,
  )
  await new Promise((resolve) => setTimeout(resolve, 700))
  expect(states().filter((state) => state === 'destroyed').length).toBe(hooks.length)
  for (const [at, hook] of hooks.entries()) await ask(at % 2, 'DELETE', `/v1/webhooks/${hook.json.id}`)
  receiver.close()
  receiver.closeAllConnections()
})
