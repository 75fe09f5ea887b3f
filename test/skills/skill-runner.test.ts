import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { readTrail } from '../../src/audit/read.ts'
import { SkillRunner } from '../../src/index.ts'
import {
  BUMP_ALLOC,
  BUMP_GLOBAL,
  buildModule,
  I32,
  I64,
  op,
  plain,
} from '../../src/wasm/testkit/module-builder.ts'

/** The library's runner: configuration, grants of a parent, many at once, the real network. */

let place: string
let runners: SkillRunner[] = []
let server: Server
let port = 0
const asked: string[] = []

beforeAll(async () => {
  server = createServer((request, response) => {
    asked.push(String(request.url))
    if (request.url === '/away') response.writeHead(302, { location: 'http://169.254.169.254/' }).end()
    else response.end(request.url === '/large' ? 'x'.repeat(2_000_000) : 'hello')
  })
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done))
  port = (server.address() as AddressInfo).port
})
afterAll(() => server.close())
beforeEach(() => {
  place = mkdtempSync(join(tmpdir(), 'rf-runner-'))
  mkdirSync(join(place, 'ws'))
})
afterEach(async () => {
  for (const runner of runners) await runner.close()
  runners = []
  rmSync(place, { recursive: true, force: true })
})

async function runner(config = ''): Promise<SkillRunner> {
  writeFileSync(join(place, 'ringfence.toml'), config)
  const env = { PATH: process.env.PATH, HOME: place, RINGFENCE_HOME: join(place, 'state') }
  const options = { config: join(place, 'ringfence.toml'), env, cwd: join(place, 'ws') }
  const made = await SkillRunner.create(options)
  runners.push(made)
  return made
}

function skill(name: string, type: string, code: string | Uint8Array, more = ''): string {
  const entry = type === 'wasm' ? 'main.wasm' : type === 'node' ? 'main.mjs' : 'main.py'
  mkdirSync(join(place, name), { recursive: true })
  writeFileSync(
    join(place, name, 'skill.toml'),
    `[skill]\nname = "${name}"\n[runtime]\ntype = "${type}"\nentry = "${entry}"\n${more}`,
  )
  writeFileSync(join(place, name, entry), code)
  return join(place, name)
}

/** Passes its input to `host_call` and returns the reply. */
const ASKING = buildModule({
  imports: [{ module: 'ringfence', name: 'host_call', params: [I32, I32], results: [I64] }],
  memory: { min: 16 },
  globals: [BUMP_GLOBAL],
  functions: [
    { export: 'execute', params: [I32, I32], results: [I64], body: [op.get(0), op.get(1), op.call(0)] },
    BUMP_ALLOC,
  ],
})
const SPIN = plain([op.loop, op.br(0), op.end])
const DEEP = plain([op.call(0)])

describe('limits of the configuration', () => {
  it('apply to WebAssembly skills; zero fuel runs nothing', async () => {
    const dir = skill('spin', 'wasm', SPIN)
    expect(await (await runner('[sandbox]\nwasm_fuel_limit = 1234\n')).run(dir)).toMatchObject({
      error: { code: 'resource-exhausted', resource: 'fuel' },
      fuel: 1234,
    })
    const add = skill('one', 'wasm', plain([op.i32(1)], { results: [I32] }))
    expect(await (await runner()).run(add)).toMatchObject({ ok: 1 })
    expect(await (await runner('[sandbox]\nwasm_fuel_limit = 0\n')).run(add)).toMatchObject({
      error: { code: 'resource-exhausted', resource: 'fuel' },
    })
    const late = await runner('[sandbox]\nwasm_fuel_limit = 10_000_000_000\nwasm_epoch_deadline = 1\n')
    expect(await late.run(dir)).toMatchObject({ error: { code: 'timeout' } })
    const shallow = await runner('[sandbox]\nwasm_stack_limit = 5\n')
    expect(await shallow.run(skill('deep', 'wasm', DEEP))).toMatchObject({ error: { resource: 'stack' } })
    const wide = skill(
      'wide',
      'wasm',
      plain([op.i32(1), op.memoryGrow], { results: [I32], memory: { min: 16 } }),
    )
    expect(await (await runner('[sandbox]\nwasm_memory_limit_mb = 1\n')).run(wide)).toMatchObject({ ok: -1 })
  })

  it('apply to the number of scripts that run at once', { timeout: 60_000 }, async () => {
    const skills = await runner('[sandbox]\nsubprocess_max_concurrent = 2\n')
    const source = `import time, os\nopen("log", "a").write("+\\n")\ntime.sleep(0.3)\nopen("log", "a").write("-\\n")\n`
    const dir = skill('slow', 'python', source, '[capabilities]\ntools = ["file_write"]\n')
    const results = await Promise.all([1, 2, 3, 4, 5].map(() => skills.run(dir)))
    for (const result of results) expect(result).toMatchObject({ ok: null })
    let [now, most] = [0, 0]
    for (const line of readFileSync(join(place, 'ws', 'log'), 'utf8')
      .trim()
      .split('\n')) {
      now += line === '+' ? 1 : -1
      most = Math.max(most, now)
    }
    expect(most).toBeLessThanOrEqual(2)
    expect(now).toBe(0)
  })
})

describe('grants', () => {
  const recall = { method: 'memory_recall', params: { key: 'k' } }
  it('come from the manifest and from the caller; flagged capabilities only from the caller', async () => {
    const skills = await runner()
    const asks = (more: string): string => skill('asks', 'wasm', ASKING, `[capabilities]\n${more}\n`)
    expect(await skills.run(asks('memory_read = ["k"]'), { input: recall })).toMatchObject({
      ok: { ok: null },
    })
    expect(await skills.run(asks('memory_read = ["other"]'), { input: recall })).toMatchObject({
      error: { code: 'capability-denied' },
    })
    const wide = asks('memory_read = ["*"]')
    expect(await skills.run(wide, { input: recall })).toMatchObject({
      error: { code: 'capability-denied' },
      withheld: ['MemoryRead(*)'],
    })
    expect(await skills.run(wide, { input: recall, grants: ['MemoryRead(*)'] })).toMatchObject({
      ok: { ok: null },
      withheld: [],
    })
  })

  it('never exceed the capabilities of the parent', async () => {
    const skills = await runner()
    const dir = skill('child', 'wasm', ASKING, '[capabilities]\nmemory_read = ["k"]\n')
    expect(await skills.run(dir, { input: recall, parent: ['MemoryRead(*)'] })).toMatchObject({
      ok: { ok: null },
    })
    await expect(skills.run(dir, { input: recall, parent: ['MemoryRead(a*)'] })).rejects.toMatchObject({
      code: 'capability-denied',
    })
    await expect(
      skills.run(dir, { input: recall, parent: ['MemoryRead(k)'], grants: ['ShellExec(ls)'] }),
    ).rejects.toMatchObject({ message: expect.stringMatching(/escalation/) })
  })

  it('keep memory between runs, private to the agent', async () => {
    const dir = skill('keeps', 'wasm', ASKING, '[capabilities]\nmemory_read = ["k"]\nmemory_write = ["k"]\n')
    const store = { method: 'memory_store', params: { key: 'k', value: [1, 'two'] } }
    expect(await (await runner()).run(dir, { input: store, agentId: 'a' })).toMatchObject({
      ok: { ok: true },
    })
    const later = await runner()
    expect(await later.run(dir, { input: recall, agentId: 'a' })).toMatchObject({ ok: { ok: [1, 'two'] } })
    expect(await later.run(dir, { input: recall, agentId: 'b' })).toMatchObject({ ok: { ok: null } })
    const large = { method: 'memory_store', params: { key: 'k', value: 'x'.repeat(70_000) } }
    expect(await later.run(dir, { input: large, agentId: 'a' })).toMatchObject({
      error: { message: expect.stringContaining('at most') },
    })
  })
})

describe('the network of a WebAssembly skill', () => {
  const fetching = (url: string) => ({ method: 'net_fetch', params: { url } })
  const open = '[network]\nallow_private = ["127.0.0.1"]\n'
  it('is granted by host and port, and does not follow a redirect', async () => {
    const skills = await runner(open)
    const dir = skill('fetches', 'wasm', ASKING, `[capabilities]\nnetwork = ["127.0.0.1:${port}"]\n`)
    const get = (path: string) => skills.run(dir, { input: fetching(`http://127.0.0.1:${port}${path}`) })
    expect(await get('/')).toMatchObject({ ok: { ok: { status: 200, body: 'hello' } } })
    expect(await get('/away')).toMatchObject({ ok: { ok: { status: 302 } } })
    expect(await get('/large')).toMatchObject({ error: { message: expect.stringContaining('larger') } })
    expect(asked).toEqual(['/', '/away', '/large'])
  })

  it('cannot reach private addresses, even if they are granted', async () => {
    const skills = await runner()
    const dir = skill('fetches', 'wasm', ASKING)
    const refused = async (url: string) => {
      const result = await skills.run(dir, {
        input: fetching(url),
        grants: ['NetConnect(*)'],
        agentId: 'net',
      })
      expect(result.violations, url).toMatchObject([{ violationType: 'SsrfBlocked' }])
      return 'error' in result && result.error.code
    }
    expect(await refused(`http://127.0.0.1:${port}/`)).toBe('ssrf-blocked')
    expect(await refused('http://169.254.169.254/latest/meta-data/')).toBe('ssrf-blocked')
    expect(await refused(`http://localhost:${port}/`)).toBe('ssrf-blocked')
    expect(asked.length).toBe(3)
    expect(await skills.run(dir, { input: fetching(`http://127.0.0.1:${port}/`) })).toMatchObject({
      error: { code: 'capability-denied' },
    })
  })
})

describe('the network of a script', () => {
  it('goes through the proxy to granted hosts; other hosts are refused and recorded', async () => {
    const skills = await runner()
    const source = `
import sys, urllib.request, urllib.error
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=5).status)
except urllib.error.HTTPError as error:
    print(error.code)
`
    const dir = skill('proxied', 'python', source, '[capabilities]\nnetwork = ["api.example.com:443"]\n')
    // Refused by name: there is no DNS lookup and no traffic.
    expect(await skills.run(dir, { input: 'http://other.example/', agentId: 'proxied' })).toMatchObject({
      ok: 403,
    })
    await skills.close()
    const found = readTrail(join(place, 'state'), { eventType: 'sandbox', agentId: 'proxied' })
    expect([...found]).toMatchObject([
      { violation_type: 'SsrfBlocked', details: expect.stringContaining('other.example') },
    ])
  })
})
