import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { client, here as dir, hasMore, type Loose, type World, world } from './kit.ts'

/** Larger clients; the set-up installs them for the full tests alone. */
const more = join(dir, 'more')

let here: World
let sandbox: Loose
beforeAll(async () => {
  if (!hasMore) return
  here = await world()
  const { Sandbox } = await client('e2b')
  sandbox = await Sandbox.create({ ...here.options, metadata: { for: 'cli' } })
})
afterAll(async () => {
  if (hasMore) await here.close()
})

/** E2B's own command line, unmodified. */
function cli(...args: readonly string[]): Promise<{ readonly code: number | null; readonly out: string }> {
  const { apiKey, apiUrl, sandboxUrl } = here.options
  const child = spawn(
    process.execPath,
    [join(more, 'node_modules', '@e2b', 'cli', 'dist', 'index.js'), ...args],
    {
      env: {
        PATH: process.env.PATH,
        HOME: here.server.dir,
        E2B_API_KEY: apiKey,
        E2B_API_URL: apiUrl,
        E2B_SANDBOX_URL: sandboxUrl,
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    },
  )
  let out = ''
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk: Buffer) => (out += chunk.toString()))
  return new Promise((resolve) => child.on('close', (code) => resolve({ code, out })))
}

describe.skipIf(!hasMore)('the E2B command line', () => {
  test('lists, shows, runs, reads logs, pauses, resumes and kills', async () => {
    const id = sandbox.sandboxId
    expect((await cli('sandbox', 'list')).out).toContain(id)
    expect((await cli('sandbox', 'info', id)).out).toContain(id)
    const ran = await cli('sandbox', 'exec', id, 'echo from the cli; exit 3')
    expect(ran.out).toContain('from the cli')
    expect(ran.code).toBe(3)
    expect((await cli('sandbox', 'logs', id)).out).toContain('SandboxState')
    expect((await cli('sandbox', 'metrics', id)).code).toBe(0)
    expect((await cli('sandbox', 'pause', id)).code).toBe(0)
    expect((await cli('sandbox', 'resume', id)).code).toBe(0)
    expect(await sandbox.isRunning()).toBe(true)
    expect((await cli('sandbox', 'kill', id)).code).toBe(0)
    expect(await sandbox.isRunning()).toBe(false)
  })
})

describe.skipIf(!hasMore)('the OpenAI Agents SDK', () => {
  test('works with a Ringfence sandbox through its E2B client', async () => {
    const { E2BSandboxClient } = await client('@openai/agents-extensions/sandbox/e2b', more)
    const { Manifest } = await client(
      '@openai/agents-core/sandbox',
      join(more, 'node_modules', '@openai', 'agents-extensions'),
    )
    const { apiKey, apiUrl, sandboxUrl } = here.options
    Object.assign(process.env, { E2B_API_KEY: apiKey, E2B_API_URL: apiUrl, E2B_SANDBOX_URL: sandboxUrl })
    const agents = new E2BSandboxClient({})
    const session = await agents.create(
      new Manifest({ entries: { 'hello.txt': { type: 'file', content: 'hello\n' } } }),
    )
    const ran = await session.execCommand({ cmd: 'cat hello.txt; pwd' })
    expect(ran).toContain('hello')
    const bytes = await session.readFile({ path: 'hello.txt' })
    expect(Buffer.from(bytes).toString()).toBe('hello\n')
    await session.close()
  })
})
