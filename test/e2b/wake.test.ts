import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { canCheckpoint } from '../../src/backends/gvisor/runsc.ts'
import { whyNot } from '../conformance/engines.ts'
import { client, get, type Loose, until, type World, world } from './kit.ts'

/** A gVisor sandbox whose memory is on disk is woken by the next request of E2B's own client. */

const MINUTE = 60_000
const CONFIG =
  '[policy]\nallow_interactive = true\n[server]\nhosts = ["*.sbx.test"]\n[backends]\norder = ["gvisor"]\n[e2b]\nwaive = ["limit.disk"]\n[[tenant]]\nname = "default"\nwaive = ["limit.disk"]\n'

const cannot = (): boolean =>
  whyNot('gvisor') !== undefined ||
  process.getuid?.() !== 0 ||
  !canCheckpoint(execFileSync('runsc', ['--version'], { encoding: 'utf8' }))

describe.skipIf(cannot())('a gVisor sandbox with auto-resume', () => {
  let here: World
  let e2b: Loose
  let one: Loose
  beforeAll(async () => {
    here = await world(CONFIG)
    e2b = await client('e2b')
    const lifecycle = { onTimeout: 'pause', autoResume: true }
    one = await e2b.Sandbox.create({ ...here.options, timeoutMs: 10 * MINUTE, lifecycle })
  }, 2 * MINUTE)
  afterAll(async () => {
    await one?.kill()
    await here?.close()
    expect(here?.logs).toEqual([])
  }, MINUTE)

  const row = async (): Promise<Loose> => (await here.server.call('GET', '/v1/sandboxes')).json.items[0]
  const page = () => get(here.options.apiUrl, one.getHost(3000))
  /** The memory of sleeping sandboxes on disk. */
  const saved = (): readonly string[] => {
    const run = join(here.server.dir, 'state', 'run')
    return readdirSync(run).filter((name) => existsSync(join(run, name, 'memory')))
  }

  test('a command, a file, a terminal, typed input and a port each wake it from disk', {
    timeout: 5 * MINUTE,
  }, async () => {
    expect((await row()).backend).toBe('gvisor')
    await one.files.write('f', 'x')
    await one.files.write(
      's.cjs',
      'let n = 0; require("http").createServer((q, s) => s.end("up " + ++n)).listen(3000)',
    )
    await one.commands.run('node s.cjs', { background: true, timeoutMs: 0 })
    await until(async () => (await page()).text === 'up 1', 'the server')
    const script = 'while read line; do echo "=$line=" >> typed; done'
    const reading = await one.commands.run(script, { background: true, stdin: true, timeoutMs: 0 })
    const wakes: Readonly<Record<string, () => Promise<unknown>>> = {
      command: async () => expect((await one.commands.run('echo in')).stdout).toBe('in\n'),
      file: async () => expect(await one.files.read('f')).toBe('x'),
      terminal: async () => (await one.pty.create({ cols: 80, rows: 24, onData: () => {} })).kill(),
      port: async () => expect(await page()).toEqual({ status: 200, text: 'up 2' }),
      input: async () => {
        await one.commands.sendStdin(reading.pid, 'in\n')
        await until(() => one.files.exists('typed'), 'the command that reads it')
        expect(await one.files.read('typed')).toBe('=in=\n')
      },
      'several at once': () =>
        Promise.all([1, 2, 3, 4].map(async () => expect((await page()).status).toBe(200))),
    }
    for (const [name, wake] of Object.entries(wakes)) {
      await one.pause()
      expect((await row()).state, name).toBe('paused')
      expect(saved().length, name).toBe(1)
      await wake()
      expect((await row()).state, name).toBe('executing')
      expect(saved(), name).toEqual([])
    }
    expect((await page()).text).toBe('up 7')
  })
})
