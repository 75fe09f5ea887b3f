import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { installed, sdk } from '../adapters/sdk.ts'
import { packageRoot } from '../conformance/world.ts'
import { client, type Loose, type World, world } from './kit.ts'

/** E2B's option `mcp`, with E2B's own client: it selects among the operator's servers. */

const modules = join(packageRoot(), 'test', 'adapters', 'node_modules')
const server = (name: string, tenants: string): string => `
[[mcp]]
name = "${name}"
command = ["node", "${modules}/@modelcontextprotocol/server-everything/dist/index.js"]
read = ["${modules}"]
tenants = ["${tenants}"]
[[mcp.rule]]
tool = "get-sum|echo"
action = "allow"
`
let here: World
let e2b: Loose
let apiKey = ''

beforeAll(async () => {
  installed()
  here = await world(server('sums', 'red') + server('other', 'blue') + server('third', 'red'))
  e2b = await client('e2b')
  apiKey = await here.key('red', ['create', 'exec', 'read'])
}, 60_000)
afterAll(async () => {
  await here.close()
  expect(here.logs).toEqual([])
})

async function connect(sandbox: Loose, token: string, more: Loose = {}): Promise<Loose> {
  const { Client, StreamableHTTPClientTransport } = await sdk<Loose>('@modelcontextprotocol/client')
  const headers = {
    authorization: `Bearer ${token}`,
    'e2b-sandbox-id': sandbox.sandboxId,
    'e2b-sandbox-port': '50005',
  }
  const made = new Client({ name: 't', version: '1' }, {})
  await made.connect(
    new StreamableHTTPClientTransport(new URL(`${here.options.apiUrl}/mcp`), {
      requestInit: { headers },
      ...more,
    }),
  )
  return made
}

/** An admin of the server answers the next question. */
async function approve(): Promise<void> {
  const { approvals, keys } = here.server.server.parts
  const { secret } = await keys.create({ scopes: ['admin'] })
  const admin = (await keys.principalOf(secret)) as Loose
  for (;;) {
    const [row] = await approvals.list(admin, 'pending', 1)
    if (row) return void (await approvals.answer(admin, row.id, { approve: true }))
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

const call = async (mcp: Loose, name: string, args = {}): Promise<string> =>
  (await mcp.callTool({ name, arguments: args })).content.map(({ text }: Loose) => text).join('\n')

test('the MCP gateway of a sandbox offers the selected servers, and requires its token', async () => {
  const sandbox = await e2b.Sandbox.create({ ...here.options, apiKey, mcp: { sums: {} } })
  const token = await sandbox.getMcpToken()
  expect(sandbox.getMcpUrl()).toMatch(/^https:\/\/50005-/)
  const mcp = await connect(sandbox, token)
  const names = async (): Promise<string[]> => (await mcp.listTools()).tools.map(({ name }: Loose) => name)
  expect(await names()).toEqual(['mcp_servers'])
  const [said] = await Promise.all([call(mcp, 'mcp_servers', { approve: 'sums' }), approve()])
  expect(said).toContain('approved 13 tools of `sums`')
  expect(await names()).toContain('sums__get-sum')
  expect(await call(mcp, 'sums__get-sum', { a: 40, b: 2 })).toContain('42')
  expect(await call(mcp, 'third__get-sum', { a: 1, b: 1 })).toMatch(/no tool named/)
  expect(await call(mcp, 'exec', { command: 'id' })).toMatch(/no tool named/)
  await mcp.close()
  await expect(connect(sandbox, 'x'.repeat(36))).rejects.toThrow()
  const other = await e2b.Sandbox.create({ ...here.options, apiKey, mcp: { sums: {} } })
  await expect(connect(other, token)).rejects.toThrow()
  await Promise.all([sandbox.kill(), other.kill()])
}, 60_000)

test('a gateway token cannot approve anything, even in a sandbox of an admin', async () => {
  const { Client, StreamableHTTPClientTransport } = await sdk<Loose>('@modelcontextprotocol/client')
  const { approvals, keys } = here.server.server.parts
  const { secret } = await keys.create({ scopes: ['admin'] })
  const admin = (await keys.principalOf(secret)) as Loose
  const sandbox = await e2b.Sandbox.create({ ...here.options, apiKey: secret, mcp: { third: {} } })
  const headers = {
    authorization: `Bearer ${await sandbox.getMcpToken()}`,
    'e2b-sandbox-id': sandbox.sandboxId,
    'e2b-sandbox-port': '50005',
  }
  const mcp = new Client({ name: 't', version: '1' }, { capabilities: { elicitation: { form: {} } } })
  let asked = 0
  mcp.setRequestHandler('elicitation/create', () => {
    asked++
    return { action: 'accept', content: {} }
  })
  await mcp.connect(
    new StreamableHTTPClientTransport(new URL(`${here.options.apiUrl}/mcp`), { requestInit: { headers } }),
  )
  const said = call(mcp, 'third__get-env')
  let row: Loose
  while (!row && asked === 0) {
    row = (await approvals.list(admin, 'pending', 1))[0]
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  expect(asked).toBe(0)
  await approvals.answer(admin, row.id, { approve: false, reason: 'no' })
  expect(await said).toMatch(/rejected: no/)
  await mcp.close()
  await sandbox.kill()
}, 60_000)

test('a gateway token ends with the key of its sandbox, also on a stream that is open; wrong ones are limited', async () => {
  const { keys } = here.server.server.parts
  const made = await keys.create({ e2b: true, tenant: 'red', scopes: ['create', 'exec', 'read'] })
  const sandbox = await e2b.Sandbox.create({ ...here.options, apiKey: made.secret, mcp: { third: {} } })
  let open = 0
  const watched = async (...asked: Parameters<typeof fetch>): Promise<Response> => {
    open++
    const answer = await fetch(...asked).finally(() => open--)
    if (!answer.body) return answer
    const [one, other] = answer.body.tee()
    open++
    void new Response(other)
      .text()
      .catch(() => {})
      .finally(() => open--)
    return new Response(one, answer)
  }
  const mcp = await connect(sandbox, await sandbox.getMcpToken(), { fetch: watched })
  await mcp.listTools()
  // The stream of the server's messages.
  await expect.poll(() => open).toBe(1)
  await keys.revoke(made.key.id)
  await expect.poll(() => open, { timeout: 5000 }).toBe(0)
  await mcp.close()
  const headers = {
    authorization: `Bearer ${'x'.repeat(36)}`,
    'e2b-sandbox-id': sandbox.sandboxId,
    'e2b-sandbox-port': '50005',
  }
  const ask = async () => (await fetch(`${here.options.apiUrl}/mcp`, { method: 'POST', headers })).status
  expect(await Promise.all(Array.from({ length: 100 }, ask))).toContain(429)
}, 60_000)

test.each([
  ['a server that does not exist', { nothing: {} }, /no MCP server `nothing`/],
  ["another tenant's server", { other: {} }, /no MCP server `other`/],
  [
    'settings of its own',
    { sums: { command: 'sh', env: { A: 'b' } } },
    /settings of MCP servers are the operator/,
  ],
  ['something else', 'sums', /object with the names/],
])('the mcp option refuses %s', async (_, mcp, why) => {
  await expect(e2b.Sandbox.create({ ...here.options, apiKey, mcp })).rejects.toThrow(why)
})
