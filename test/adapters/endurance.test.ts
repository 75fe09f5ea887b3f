import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type RunningServer, startServer } from '../../src/compose/serve.ts'
import { packageRoot } from '../conformance/world.ts'
import { full, sdk } from './sdk.ts'

/** Long use of MCP: many calls, cancelled calls, a command of ten minutes, clients that come again. Full runs only. */

type Client = {
  connect(transport: object): Promise<void>
  close(): Promise<void>
  callTool(
    call: { name: string; arguments?: object },
    options?: object,
  ): Promise<{ readonly content: readonly { readonly text?: string }[] }>
}
type Sdk = {
  readonly Client: new (info: object, options?: object) => Client
  readonly StreamableHTTPClientTransport: new (url: URL, options?: object) => object
}
type StdioSdk = { readonly StdioClientTransport: new (options: object) => object }

const base = mkdtempSync(join(tmpdir(), 'rf-endurance-'))
let server: RunningServer
let key = ''

beforeAll(async () => {
  if (!full) return
  mkdirSync(join(base, 'work'))
  server = await startServer({
    env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: join(base, 'server') },
    port: 0,
  })
  key = (await server.parts.keys.create({ scopes: ['create', 'exec', 'read'] })).secret
}, 60_000)
afterAll(async () => {
  if (full) await server.close()
  rmSync(base, { recursive: true, force: true })
})

async function connect(kind: string): Promise<Client> {
  const { Client, StreamableHTTPClientTransport } = await sdk<Sdk>('@modelcontextprotocol/client')
  const { StdioClientTransport } = await sdk<StdioSdk>('@modelcontextprotocol/client/stdio')
  const client = new Client({ name: 'the-tester', version: '1' }, {})
  await client.connect(
    kind === 'stdio'
      ? new StdioClientTransport({
          command: process.execPath,
          args: [join(packageRoot(), 'dist', 'cli', 'ringfence.cjs'), 'mcp'],
          cwd: join(base, 'work'),
          env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: join(base, 'state') },
        })
      : new StreamableHTTPClientTransport(new URL(`${server.url}/mcp`), {
          requestInit: { headers: { authorization: `Bearer ${key}` } },
        }),
  )
  return client
}

const exec = async (client: Client, command: string, options = {}, more = {}): Promise<string> =>
  (await client.callTool({ name: 'exec', arguments: { command, ...more } }, options)).content
    .map(({ text }) => text ?? '')
    .join('\n')

const KINDS = ['stdio', 'http'] as const

describe.runIf(full).each(KINDS)('MCP over %s', (kind) => {
  test('100 calls in a row work, with cancelled calls between them', async () => {
    const client = await connect(kind)
    for (let n = 0; n < 100; n++) {
      if (n % 25 === 10) {
        const stop = new AbortController()
        setTimeout(() => stop.abort(), 200)
        await expect(exec(client, 'sleep 600', { signal: stop.signal })).rejects.toThrow()
      }
      expect(await exec(client, `echo number ${n}`)).toContain(`number ${n}`)
    }
    expect(await exec(client, 'pgrep -c sleep || true')).toMatch(/^0/)
    await client.close()
  }, 300_000)

  test('a client can reconnect', async () => {
    for (let n = 0; n < 5; n++) {
      const client = await connect(kind)
      expect(await exec(client, 'echo again')).toContain('again')
      await client.close()
    }
  }, 120_000)
})

describe.runIf(full).concurrent.each(KINDS)('MCP over %s', (kind) => {
  test('a command can run for ten minutes', { timeout: 720_000 }, async ({ expect }) => {
    const client = await connect(kind)
    const waiting = { timeout: 700_000, maxTotalTimeout: 700_000 }
    expect(await exec(client, 'sleep 600; echo late', waiting, { timeout_ms: 660_000 })).toContain('late')
    await client.close()
  })
})
