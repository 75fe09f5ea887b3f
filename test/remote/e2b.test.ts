import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { e2b } from '../../src/backends/e2b/backend.ts'
import { SandboxRegistry } from '../../src/backends/registry.ts'
import { type ComposeOptions, E2BSandbox, getE2BSandbox, resetE2BSandbox, Sandbox } from '../../src/index.ts'
import { text, until } from '../backends/persistent-sandbox.ts'
import { planOf } from '../conformance/world.ts'
import { client, type World, world } from '../e2b/kit.ts'

/** The backend `e2b` against our own server: real sandboxes through E2B's protocol. */
let there: World
let dir: string
let compose: ComposeOptions

beforeAll(async () => {
  there = await world()
  dir = mkdtempSync(join(tmpdir(), 'rf-remote-'))
  const { apiKey, apiUrl, sandboxUrl } = there.options
  compose = {
    env: {
      PATH: process.env.PATH,
      HOME: dir,
      RINGFENCE_HOME: join(dir, 'state'),
      E2B_API_KEY: apiKey,
      E2B_API_URL: apiUrl,
      E2B_SANDBOX_URL: sandboxUrl,
    },
    cwd: dir,
  }
}, 60_000)

afterAll(async () => {
  await there.close()
  rmSync(dir, { recursive: true, force: true })
})

const open = (spec: Record<string, unknown> = {}) =>
  Sandbox.create({ backend: 'e2b', waive: ['kernel.filtered'], ...spec }, compose)
const living = async (): Promise<number> =>
  (await there.server.call('GET', '/v1/sandboxes?state=ready')).json.items.length

describe.each(['rest', 'sdk'] as const)('the E2B backend, by %s', (way) => {
  const settings = () => ({ ...there.options, domain: 'localhost', template: 'base' })
  const backend = () =>
    e2b({
      settings: settings(),
      sdk: () => (way === 'sdk' ? client('e2b') : Promise.reject()),
      idleMs: 60_000,
    })
  const plan = () => planOf({ backend: 'e2b', waive: ['kernel.filtered'] })

  test('creates, uses and destroys a sandbox', async () => {
    expect(await backend().probe()).toMatchObject({ available: true })
    const sandbox = await backend().open(plan())
    expect(await sandbox.layers()).toContain(`e2b:${way}`)
    const { outcome, stdout } = await sandbox.exec({ argv: ['/bin/sh', '-c', 'printf "a\\377b"; exit 3'] })
    expect(outcome).toEqual({ kind: 'exited', code: 3 })
    expect([...stdout]).toEqual([97, 255, 98])
    await sandbox.files.write('/home/user/x', [Buffer.from('hello')])
    expect((await sandbox.files.stat('/home/user/x')).size).toBe(5)
    const before = await living()
    await sandbox.close()
    expect(await living()).toBe(before - 1)
    await sandbox.close()
  })
})

describe('the E2B backend', () => {
  test('supports commands, input, limits and files', async () => {
    await using sandbox = await open()
    const fed = await sandbox.exec(['cat'], { stdin: Buffer.from('over there') })
    expect(text(fed.stdout)).toBe('over there')
    expect((await sandbox.exec(['no-such-program'])).outcome).toEqual({ kind: 'exited', code: 127 })
    const late = await sandbox.exec(['sleep', '60'], { limits: { wallMs: 300 } })
    expect(late.outcome).toEqual({ kind: 'stopped', limit: 'wall' })
    const long = await sandbox.exec(['yes'], { limits: { outputBytes: 10_000 } })
    expect(long.outcome).toEqual({ kind: 'stopped', limit: 'output' })
    await sandbox.files.write('/home/user/d/f', 'one two three')
    expect(text(await sandbox.files.read('/home/user/d/f', { offset: 4, length: 3 }))).toBe('two')
    expect(await sandbox.files.list('/home/user/d')).toEqual(['f'])
    await sandbox.files.move('/home/user/d/f', '/home/user/d/g')
    const packed: Uint8Array[] = []
    for await (const chunk of sandbox.files.pack('/home/user/d')) packed.push(chunk)
    await sandbox.files.makeDir('/home/user/e')
    await sandbox.files.unpack('/home/user/e', packed)
    expect(text(await sandbox.files.read('/home/user/e/g'))).toBe('one two three')
    await sandbox.files.remove('/home/user/d')
    await expect(sandbox.files.stat('/home/user/d')).rejects.toMatchObject({ code: 'file-not-found' })
  })

  test('copies read grants to the sandbox, without denied paths', async () => {
    const workspace = join(dir, 'workspace')
    mkdirSync(join(workspace, 'secrets'), { recursive: true })
    writeFileSync(join(workspace, 'secrets', 'key'), 'hidden')
    writeFileSync(join(workspace, 'shown'), 'seen')
    const deny = [join(workspace, 'secrets')]
    const granted = { read: [workspace], deny }
    await using sandbox = await open(granted)
    expect(text(await sandbox.files.read(join(workspace, 'shown')))).toBe('seen')
    expect(await sandbox.files.list(workspace)).toEqual(['shown'])
    await sandbox.close()
    await expect(open({ workspace })).rejects.toMatchObject({ code: 'unsupported' })
    expect(await living()).toBe(0)
  })

  test('refuses guarantees that cannot be checked remotely, unless they are waived', async () => {
    await expect(Sandbox.create({ backend: 'e2b' }, compose)).rejects.toMatchObject({
      code: 'missing-guarantee',
    })
    await expect(open({ limits: { memoryMb: 64 } })).rejects.toMatchObject({ code: 'missing-guarantee' })
    await expect(open({ limits: { wallMs: 1000 } })).rejects.toMatchObject({ code: 'missing-guarantee' })
    await expect(open({ network: { mode: 'fetch' } })).rejects.toMatchObject({ code: 'missing-guarantee' })
  })

  test('is never selected automatically, and unavailable without a key', async () => {
    const none = e2b({ settings: undefined, sdk: () => Promise.reject(), idleMs: 1000 })
    expect(await none.probe()).toMatchObject({
      available: false,
      reason: expect.stringContaining('E2B_API_KEY'),
    })
    const registry = new SandboxRegistry().register(none, 100)
    await expect(registry.select(planOf({}))).rejects.toThrow()
  })

  test('reports a wrong key and an unreachable address without showing the key', async () => {
    const settings = {
      apiKey: `e2b_${'0'.repeat(40)}`,
      apiUrl: there.options.apiUrl,
      domain: 'x',
      template: 'base',
    }
    const wrong = e2b({ settings, sdk: () => Promise.reject(), idleMs: 1000 })
    const probe = await wrong.probe()
    expect(probe).toMatchObject({ available: false, reason: 'e2b rejected the key' })
    expect(JSON.stringify(probe)).not.toContain(settings.apiKey)
    const dead = e2b({
      settings: { ...settings, apiUrl: 'http://127.0.0.1:9' },
      sdk: () => Promise.reject(),
      idleMs: 1000,
    })
    expect(await dead.probe()).toMatchObject({
      available: false,
      reason: expect.stringMatching(/cannot reach/),
    })
  })

  test('sends its key only over https', async () => {
    for (const way of [{ apiUrl: 'http://e2b.example' }, { sandboxUrl: 'http://e2b.example' }]) {
      const settings = { ...there.options, domain: 'x', template: 'base', ...way }
      const clear = e2b({ settings, sdk: () => Promise.reject(), idleMs: 1000 })
      expect(await clear.probe()).toMatchObject({
        available: false,
        reason: expect.stringContaining('https'),
      })
      await expect(clear.open(planOf({ backend: 'e2b' }))).rejects.toMatchObject({ code: 'invalid-input' })
    }
  })

  test('reports an error if the remote sandbox has ended', async () => {
    const sandbox = await open()
    const [{ id }] = (await there.server.call('GET', '/v1/sandboxes?state=ready')).json.items
    expect((await there.server.call('DELETE', `/v1/sandboxes/${id}`)).status).toBe(200)
    await expect(sandbox.exec(['true'])).rejects.toThrow(/gone|rejected/)
    await sandbox.close()
  })
})

describe('the class E2BSandbox', () => {
  test('creates, writes and reads files, runs scripts and destroys', async () => {
    const sandbox = new E2BSandbox({ compose })
    await sandbox.writeFile('/home/user/a.txt', 'text')
    expect(text(await sandbox.readFile('/home/user/a.txt'))).toBe('text')
    expect((await sandbox.listFiles()).map(({ name }) => name)).toContain('a.txt')
    expect(text((await sandbox.runScript('print(6 * 7)', 'python')).stdout)).toBe('42\n')
    expect(text((await sandbox.runScript('console.log(6 * 7)', 'javascript')).stdout)).toBe('42\n')
    expect(text((await sandbox.execute('echo $((6 * 7))')).stdout)).toBe('42\n')
    await sandbox.destroy()
    expect(await living()).toBe(0)
    await sandbox.destroy()
  })

  test('accepts only package names, and requires network access for them', async () => {
    const sandbox = new E2BSandbox({ compose })
    for (const name of [
      '--global',
      'a;id',
      'a b',
      '$(id)',
      '../x',
      'http://x/y.tgz',
      'git+ssh://x',
      '-e.',
      '',
    ])
      for (const language of ['node', 'python'] as const)
        await expect(sandbox.installPackages([name], language)).rejects.toMatchObject({
          code: 'invalid-input',
        })
    await expect(sandbox.installPackages(['@types/node@20'], 'node')).rejects.toMatchObject({
      code: 'invalid-network-mode',
    })
    await expect(sandbox.installPackages(['requests[socks]==2.*'], 'python')).rejects.toMatchObject({
      code: 'invalid-network-mode',
    })
  })

  test('destroys an idle sandbox, and resets the shared one', async () => {
    const sandbox = new E2BSandbox({ compose, idleTimeoutMs: 500 })
    await sandbox.ensureSandbox()
    expect(await living()).toBe(1)
    expect(await until(async () => (await living()) === 0)).toBe(true)
    const shared = getE2BSandbox({ compose })
    await shared.ensureSandbox()
    expect(getE2BSandbox()).toBe(shared)
    await resetE2BSandbox()
    expect(await living()).toBe(0)
    expect(getE2BSandbox({ compose })).not.toBe(shared)
    await resetE2BSandbox()
  })
})

describe('an answer that is not E2B’s', () => {
  const answering = async (answer: (url: string) => { status: number; body: string }) => {
    const server = createServer((request, response) => {
      const { status, body } = answer(request.url ?? '')
      response.writeHead(status, { 'content-type': 'application/json' }).end(body)
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    const settings = { apiKey: 'e2b_secret_key', apiUrl: url, sandboxUrl: url, domain: 'x', template: 'base' }
    return {
      backend: e2b({ settings, sdk: () => Promise.reject(), idleMs: 1000 }),
      close: () => server.close(),
    }
  }

  test.each([
    ['garbage', 200, '<html>'],
    ['an id with a host name', 201, '{"sandboxID":"x.evil.example/","envdAccessToken":"t"}'],
    ['nothing', 201, ''],
    ['an error with our key in it', 500, '{"message":"boom"}'],
  ])('with %s is a clear error', async (_, status, body) => {
    const { backend, close } = await answering(() => ({ status, body }))
    const failed = await backend.open(planOf({ backend: 'e2b' })).then(
      () => undefined,
      (error: Error) => error,
    )
    close()
    expect(failed).toMatchObject({ code: 'fetch-failed' })
    expect(String(failed?.message)).not.toContain('e2b_secret_key')
  })
})
