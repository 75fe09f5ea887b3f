import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { startServer } from '../../src/compose/serve.ts'
import { client, get, type Loose, until, type World, world } from './kit.ts'

/** Sandboxes that sleep when their time is over, and what wakes them. */

let here: World
let e2b: Loose
beforeAll(async () => {
  here = await world('[policy]\nallow_interactive = true\n[server]\nhosts = ["*.sbx.test"]\n')
  e2b = await client('e2b')
})
afterAll(async () => {
  await here.close()
  expect(here.logs).toEqual([])
})

const make = (lifecycle: object, more: object = {}): Promise<Loose> =>
  e2b.Sandbox.create({ ...here.options, timeoutMs: 60_000, lifecycle, ...more })
const stateOf = async (one: Loose): Promise<string> => (await one.getInfo()).state
/** Lets the time of a sandbox run out. */
async function runOut(one: Loose): Promise<void> {
  await one.setTimeout(1)
  await until(async () => (await stateOf(one)) === 'paused', 'the pause')
}
const homes = (place: World, one: Loose): string =>
  join(place.server.dir, 'state', 'homes', one.sandboxId.replace(/^sb/, 'sb_'))

describe('a sandbox that pauses at its timeout', () => {
  test('stays paused until a client connects', async () => {
    const one = await make({ onTimeout: 'pause' })
    expect((await one.getInfo()).lifecycle).toMatchObject({ onTimeout: 'pause', autoResume: false })
    const sleeping = await one.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
    await runOut(one)
    expect(await one.isRunning()).toBe(false)
    await expect(one.commands.run('true')).rejects.toThrow()
    expect(await stateOf(one)).toBe('paused')
    await one.connect()
    expect(await stateOf(one)).toBe('running')
    expect((await one.commands.list()).map(({ pid }: Loose) => pid)).toContain(sleeping.pid)
    const { endAt } = await one.getInfo()
    expect(endAt.getTime()).toBeGreaterThan(Date.now() + 30_000)
    await one.kill()
  })

  test('is resumed once for several clients that connect at once, also while it is being paused', async () => {
    const one = await make({ onTimeout: 'pause' })
    const connect = (): Promise<Loose> => e2b.Sandbox.connect(one.sandboxId, here.options)
    await one.pause()
    await Promise.all([1, 2, 3, 4].map(connect))
    expect(await stateOf(one)).toBe('running')
    for (let round = 0; round < 5; round++) {
      const pausing = one.pause()
      await connect()
      await pausing
      await connect()
      expect(await stateOf(one)).toBe('running')
    }
    await one.kill()
  })

  test('with auto-resume, is resumed by a command, a file, a terminal and a port', async () => {
    const one = await make({ onTimeout: 'pause', autoResume: true })
    await one.files.write('f', 'x')
    await one.files.write('s.cjs', 'require("http").createServer((q, s) => s.end("up")).listen(3000)')
    await one.commands.run('node s.cjs', { background: true, timeoutMs: 0 })
    const page = () => get(here.options.apiUrl, one.getHost(3000))
    await until(async () => (await page()).text === 'up', 'the server')
    const wakes: readonly (() => Promise<unknown>)[] = [
      async () => expect((await one.commands.run('echo in')).stdout).toBe('in\n'),
      async () => expect(await one.files.read('f')).toBe('x'),
      async () => (await one.pty.create({ cols: 80, rows: 24, onData: () => {} })).kill(),
      async () => expect(await page()).toEqual({ status: 200, text: 'up' }),
      // Several at once wake it once.
      () => Promise.all([1, 2, 3, 4].map(async () => expect((await page()).text).toBe('up'))),
    ]
    for (const wake of wakes) {
      await (wake === wakes[0] ? runOut(one) : one.pause())
      await wake()
      expect(await stateOf(one)).toBe('running')
    }
    await one.kill()
  })

  test('is not resumed by a refused request or by reading its state', async () => {
    const one = await make(
      { onTimeout: 'pause', autoResume: true },
      { network: { allowPublicTraffic: false } },
    )
    await one.pause()
    expect(await one.isRunning()).toBe(false)
    expect((await get(here.options.apiUrl, one.getHost(3000))).status).toBe(403)
    const stranger = await e2b.Sandbox.create({ ...here.options, apiKey: await here.key('stranger') })
    const files = await fetch(`${here.options.apiUrl}/files?path=f`, {
      headers: { 'e2b-sandbox-id': one.sandboxId, 'x-access-token': stranger.envdAccessToken },
    })
    expect(files.status).toBe(401)
    const socket = new WebSocket(here.options.apiUrl.replace('http', 'ws'), {
      headers: { host: one.getHost(3000) },
    })
    await new Promise((resolve) => socket.on('error', resolve))
    expect(await stateOf(one)).toBe('paused')
    await one.kill()
    await stranger.kill()
  })

  test('is not resumed by a revoked key', async () => {
    const made = await here.server.server.parts.keys.create({ e2b: true })
    const one = await make({ onTimeout: 'pause', autoResume: true }, { apiKey: made.secret })
    await one.pause()
    const id = one.sandboxId.replace(/^sb/, 'sb_')
    await here.server.server.parts.keys.revoke(made.key.id)
    const page = await get(here.options.apiUrl, one.getHost(3000))
    expect([page.status, (await here.server.call('GET', `/v1/sandboxes/${id}`)).json.state]).toEqual([
      401,
      'paused',
    ])
    await here.server.call('DELETE', `/v1/sandboxes/${id}`)
  })

  test('is auto-resumed only a limited number of times in a row', async () => {
    const one = await make({ onTimeout: 'pause', autoResume: true })
    let last = 0
    for (let times = 0; times < 20 && last !== 429; times++) {
      await one.pause()
      last = (await get(here.options.apiUrl, one.getHost(3000))).status
    }
    expect(last).toBe(429)
    await one.connect()
    expect(await stateOf(one)).toBe('running')
    await one.kill()
  })
})

describe('a sandbox paused without its memory', () => {
  test('keeps its files, network and id, and boots again', async () => {
    const one = await e2b.Sandbox.create({ ...here.options, envs: { COLOUR: 'red' }, timeoutMs: 60_000 })
    await one.files.write('f', 'kept', { metadata: { a: 'b' } })
    await one.commands.run('echo w > /workspace/w; echo t > /tmp/t')
    const boot = async (): Promise<string> =>
      (await one.commands.run('cat /proc/sys/kernel/random/boot_id')).stdout
    const before = await boot()
    const running = await one.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
    expect(await one.pause({ keepMemory: false })).toBe(true)
    await expect(running.wait()).rejects.toThrow(/paused/)
    expect([await stateOf(one), await one.isRunning()]).toEqual(['paused', false])
    expect(await one.pause({ keepMemory: false })).toBe(false)
    await one.connect()
    expect((await one.files.getInfo('f')).metadata).toEqual({ a: 'b' })
    const { stdout } = await one.commands.run(
      'cat f /workspace/w; ls /tmp; echo "$COLOUR"; pgrep -c sleep; true',
    )
    expect(stdout).toBe('keptw\nred\n0\n')
    expect(await one.commands.list()).toEqual([])
    expect(await boot()).toMatch(/^[0-9a-f-]{36}\n$/)
    expect(await boot()).not.toBe(before)
    const id = one.sandboxId.replace(/^sb/, 'sb_')
    const { json } = await here.server.call('GET', `/v1/audit?sandbox_id=${id}&event=SandboxState`)
    expect(json.items.map(({ state }: Loose) => state)).toEqual(['ready', 'paused', 'ready'])
    await one.kill()
    expect(existsSync(homes(here, one))).toBe(false)
  })

  test('can be killed while paused, and leaves no files', async () => {
    const one = await make({ onTimeout: { action: 'pause', keepMemory: false } })
    await one.files.write('f', 'x')
    await runOut(one)
    expect(readdirSync(homes(here, one)).length).toBeGreaterThan(0)
    expect(await one.kill()).toBe(true)
    expect(existsSync(homes(here, one))).toBe(false)
    expect(await one.kill()).toBe(false)
  })

  test('keeps restrictions of its network', async () => {
    const open = await world('[network]\nallow_hosts = ["one.example"]\n')
    const one = await e2b.Sandbox.create({ ...open.options, allowInternetAccess: false })
    const live = () => {
      const entries = [...open.server.server.parts.supervisor.all]
      return entries[0]?.sandbox?.allowHosts
    }
    expect(live()).toEqual([])
    await one.pause({ keepMemory: false })
    await one.connect()
    expect(live()).toEqual([])
    await open.close()
  })
})

describe('a restart of the server', () => {
  test('restores paused sandboxes with their files, quota and list entries', async () => {
    const config = '[server]\nmax_sandboxes_per_key = 2\n'
    const first = await world(config)
    const options = { ...first.options, timeoutMs: 60_000 }
    const files = await e2b.Sandbox.create(options)
    const frozen = await e2b.Sandbox.create(options)
    for (const one of [files, frozen]) await one.files.write('f', one.sandboxId)
    await files.pause({ keepMemory: false })
    await frozen.pause()
    const { dir } = first.server
    await first.server.server.close()
    const env = { PATH: process.env.PATH, HOME: dir, RINGFENCE_HOME: join(dir, 'state') }
    const again = await startServer({ port: 0, config: join(dir, 'ringfence.toml'), env, cwd: dir })
    try {
      const there = { apiKey: options.apiKey, apiUrl: again.url, sandboxUrl: again.url }
      const listed = await e2b.Sandbox.list({ ...there, query: { state: ['paused'] } }).nextItems()
      expect(listed.map(({ sandboxId }: Loose) => sandboxId).sort()).toEqual(
        [files.sandboxId, frozen.sandboxId].sort(),
      )
      await expect(e2b.Sandbox.create(there)).rejects.toThrow(/already has 2/)
      for (const { sandboxId } of [files, frozen]) {
        const one = await e2b.Sandbox.connect(sandboxId, there)
        expect(await one.files.read('f')).toBe(sandboxId)
        await one.kill()
      }
      const after = await e2b.Sandbox.create(there)
      expect(readdirSync(join(dir, 'state', 'homes'))).toHaveLength(1)
      await after.kill()
    } finally {
      await again.close()
      await first.close().catch(() => {})
    }
  })

  test('removes files of paused sandboxes after their retention time', async () => {
    const one = await e2b.Sandbox.create(here.options)
    await one.pause({ keepMemory: false })
    const { supervisor } = here.server.server.parts
    expect(await supervisor.endOldPaused(Date.now() + 29 * 24 * 3_600_000)).toBe(0)
    expect(await supervisor.endOldPaused(Date.now() + 31 * 24 * 3_600_000)).toBe(1)
    expect(existsSync(homes(here, one))).toBe(false)
    await expect(one.getInfo()).rejects.toThrow(/not found/)
  })
})
