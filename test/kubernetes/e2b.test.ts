import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { client, get, type Loose, until, type World, world } from '../e2b/kit.ts'
import { configText, noFullCluster } from './lab.ts'

/** E2B's unmodified client, and a server whose sandboxes are Pods. */

const MINUTES = 60_000
const CONFIG = `[policy]\nallow_interactive = true\n[[tenant]]\nname = "default"\nbackends = ["kubernetes"]\n${configText()}`

describe.skipIf(noFullCluster())('the E2B client on Pods', () => {
  let here: World
  let e2b: Loose
  let sandbox: Loose
  beforeAll(async () => {
    here = await world(CONFIG)
    e2b = await client('e2b')
    sandbox = await e2b.Sandbox.create(here.options)
  }, 3 * MINUTES)
  afterAll(async () => {
    await sandbox?.kill()
    await here?.close()
  }, MINUTES)

  test('runs commands in a Pod', { timeout: MINUTES }, async () => {
    expect((await sandbox.commands.run('pwd')).stdout).toBe('/home/user\n')
    await expect(sandbox.commands.run('exit 3')).rejects.toMatchObject({ exitCode: 3 })
    const [row] = (await here.server.call('GET', '/v1/sandboxes')).json.items
    expect(row).toMatchObject({ backend: 'kubernetes', level: 'container' })
  })

  test('supports files, streams, background processes and ports', { timeout: MINUTES }, async () => {
    await sandbox.files.write('/home/user/index.html', 'hello')
    expect(await sandbox.files.read('/home/user/index.html')).toBe('hello')
    expect((await sandbox.files.list('/home/user')).map((one: Loose) => one.name)).toContain('index.html')
    const pieces: string[] = []
    await sandbox.commands.run('echo one; sleep 0.2; echo two', {
      onStdout: (piece: string) => pieces.push(piece),
    })
    expect(pieces.join('')).toBe('one\ntwo\n')
    const background = await sandbox.commands.run('python3 -m http.server 8081', { background: true })
    expect((await sandbox.commands.list()).some((one: Loose) => one.pid === background.pid)).toBe(true)
    const host = new URL(`http://${sandbox.getHost(8081)}`).host
    await until(
      async () => (await get(here.options.apiUrl, host)).text === 'hello',
      'the page of the sandbox',
    )
    expect(await background.kill()).toBe(true)
  })

  test('connects to it again by its id, and ends it', { timeout: MINUTES }, async () => {
    const again = await e2b.Sandbox.connect(sandbox.sandboxId, here.options)
    expect(await again.files.read('/home/user/index.html')).toBe('hello')
    expect(await again.isRunning()).toBe(true)
    expect(await again.kill()).toBe(true)
    expect(await sandbox.isRunning()).toBe(false)
  })
})
