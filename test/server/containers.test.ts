import { createHash } from 'node:crypto'
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { RingfenceClient } from '../../src/client/index.ts'
import { ContainerEngine } from '../../src/host/net/container-engine.ts'
import { ownEpoch } from '../../src/host/process/orphans.ts'
import { skipped, startDocker, type TestEngine, testImages, testState } from '../conformance/engines.ts'
import { client as strangers } from '../e2b/kit.ts'
import { startTestServer, type TestServer } from './test-server.ts'

/** The server on real container engines: everything that works on bubblewrap works here too. */

const MINUTES = 60_000
const CONFIG = `
[policy]
allow_interactive = true
[network]
allow_private = ["127.0.0.1"]
allow_hosts = ["127.0.0.1"]
`

/** A server whose state directory has the images of the tests. */
async function serve(order: string, socket?: string, more = ''): Promise<TestServer> {
  const dir = mkdtempSync(join(tmpdir(), 'rf-containers-'))
  await testImages().default()
  const state = join(dir, 'state')
  mkdirSync(state, { mode: 0o700 })
  symlinkSync(join(testState(), 'images'), join(state, 'images'))
  const own = { PATH: process.env.PATH, HOME: dir, RINGFENCE_HOME: state }
  const env = socket === undefined ? own : { ...own, RINGFENCE_DOCKER_SOCKET: socket }
  const home = await startTestServer(`${CONFIG}[backends]\norder = ["${order}"]\n${more}`, { env })
  return {
    ...home,
    close: async () => {
      await home.close()
      rmSync(dir, { recursive: true, force: true })
    },
  }
}

const until = async (done: () => boolean | Promise<boolean>): Promise<void> => {
  for (let tries = 0; tries < 300 && !(await done()); tries++)
    await new Promise((resolve) => setTimeout(resolve, 50))
  expect(await done()).toBe(true)
}

const SERVER = `
import http.server
class H(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    self.send_response(200); self.end_headers(); self.wfile.write(b'inside ' + self.path.encode())
  def log_message(self, *a): pass
http.server.HTTPServer(('127.0.0.1', 8000), H).serve_forever()`

const GET = `
import os, sys, urllib.request as u
for name in ('no_proxy', 'NO_PROXY'): os.environ.pop(name, None)
ways = {'proxy': {'http': 'http://127.0.0.1:3128'}, 'straight': {}}
print(u.build_opener(u.ProxyHandler(ways[sys.argv[2]])).open(sys.argv[1]).read().decode())`

describe('docker with gVisor as runtime, set in the configuration', () => {
  const out = skipped('docker') || skipped('gvisor')
  test.skipIf(out)(
    'runs sandboxes in a separate kernel and reports that guarantee',
    { timeout: 3 * MINUTES },
    async () => {
      const engine = await startDocker()
      const home = await serve('docker', engine.socket, 'docker_runtime = "runsc"\n')
      try {
        const client = new RingfenceClient({ url: home.server.url, apiKey: home.admin })
        const sandbox = await client.create({ backend: 'docker', min_isolation: 'container' })
        const { stdout } = await sandbox.exec('cat /proc/version')
        // gVisor says that it is this one, whatever the host has.
        expect(stdout).toMatch(/^Linux version 4\.4\.0 /)
        const found = await new ContainerEngine({ socket: engine.socket }).call({
          method: 'GET',
          path: '/containers/json',
        })
        const [{ Id }] = found.body as [{ Id: string }]
        const seen = await new ContainerEngine({ socket: engine.socket }).call({
          method: 'GET',
          path: `/containers/${Id}/json`,
        })
        expect(seen.body).toMatchObject({ HostConfig: { Runtime: 'runsc' } })
        await expect(client.create({ backend: 'docker', limits: { diskMb: 10 } })).rejects.toMatchObject({
          code: 'missing-guarantee',
        })
        await sandbox.close()
      } finally {
        await home.close()
        await engine.close()
      }
    },
  )
})

describe.each(['docker', 'gvisor'] as const)('a server with backend %s', (backend) => {
  const out = skipped(backend)
  let engine: TestEngine | undefined
  let home: TestServer
  let client: RingfenceClient
  beforeAll(async () => {
    if (out) return
    engine = backend === 'docker' ? await startDocker() : undefined
    home = await serve(backend, engine?.socket, '[[tenant]]\nname = "acme"\nimages = ["acme/build:3"]\n')
    client = new RingfenceClient({ url: home.server.url, apiKey: home.admin })
    // The first sandbox loads the image into the engine.
    await (await client.create({ backend })).close()
  }, 3 * MINUTES)
  afterAll(async () => {
    await home?.close()
    await engine?.close()
  }, MINUTES)

  test.skipIf(out)('runs commands with streams, input and files', { timeout: MINUTES }, async () => {
    const sandbox = await client.create({})
    expect(sandbox.info).toMatchObject({ backend, state: 'ready' })
    expect(await sandbox.exec('echo out; echo err >&2; exit 3')).toMatchObject({
      stdout: 'out\n',
      stderr: 'err\n',
      outcome: { kind: 'exited', code: 3 },
    })
    const seen: string[] = []
    for await (const event of sandbox.stream('echo a; sleep 0.1; echo b >&2')) seen.push(event.type)
    expect(seen).toEqual(['start', 'stdout', 'stderr', 'end'])
    expect(await sandbox.exec('cat', { stdin: 'given' })).toMatchObject({ stdout: 'given' })
    await sandbox.files.write('/tmp/a/b', 'written')
    expect(Buffer.from(await sandbox.files.read('/tmp/a/b')).toString()).toBe('written')
    expect(await sandbox.exec('cat /tmp/a/b')).toMatchObject({ stdout: 'written' })
    await sandbox.close()
  })

  test.skipIf(out || backend !== 'docker')(
    'lets a tenant use engine images that it was granted, and every image built by Ringfence',
    { timeout: MINUTES },
    async () => {
      const [acme, other] = [
        await home.key(['create', 'exec', 'read'], 'acme'),
        await home.key(['create', 'exec', 'read'], 'other'),
      ]
      const docker = new ContainerEngine({ socket: engine?.socket as string })
      const { id } = await testImages().default()
      await docker.call({ method: 'POST', path: `/images/${id}/tag?repo=acme/build&tag=3` })
      const create = (key: string, image: string) =>
        home.call('POST', '/v1/sandboxes', { key, body: { backend: 'docker', image } })
      const refused = await create(other, 'acme/build:3')
      expect(refused, refused.text).toMatchObject({ status: 403 })
      expect(refused.json.hint).toContain('images = ["acme/build:3"]')
      expect((await create(acme, 'acme/build:4')).status).toBe(403)
      for (const [key, image] of [
        [acme, 'acme/build:3'],
        [other, 'default'],
        // The operator makes it in the tenant's name, and the tenant uses it.
        [await home.key(['create', 'exec', 'read', 'admin'], 'other'), 'default'],
      ] as const) {
        const made = await create(key, image)
        expect(made, made.text).toMatchObject({ status: 201 })
        const user = key === acme ? acme : other
        const at = `/v1/sandboxes/${made.json.id}`
        const ran = await home.call('POST', `${at}/exec`, { key: user, body: { command: 'echo in' } })
        expect(ran, ran.text).toMatchObject({ status: 200, json: { stdout: 'in\n' } })
        const headers = { 'x-api-key': user }
        const e2b = `/sandboxes/${made.json.id.replace('_', '')}`
        const seen = await home.call('GET', e2b, { key: '', headers })
        expect(seen, seen.text).toMatchObject({ status: 200 })
        for (const path of ['pause', 'connect']) {
          const body = path === 'connect' ? { timeout: 60 } : {}
          const moved = await home.call('POST', `${e2b}/${path}`, { key: '', headers, body })
          expect(moved.status, moved.text).toBeLessThan(300)
        }
        const stranger = user === acme ? other : acme
        expect(
          (await home.call('POST', `${at}/exec`, { key: stranger, body: { command: 'true' } })).status,
        ).toBe(404)
        expect((await home.call('DELETE', at, { key: user })).status).toBe(200)
      }
      // A tenant cannot use sandboxes that the operator created from the engine's own images.
      const operators = await create(
        await home.key(['create', 'exec', 'read', 'admin'], 'other'),
        'acme/build:3',
      )
      const used = await home.call('POST', `/v1/sandboxes/${operators.json.id}/exec`, {
        key: other,
        body: { command: 'true' },
      })
      expect(used, used.text).toMatchObject({ status: 403 })
      expect(used.json.hint).toContain('images = ["acme/build:3"]')
      await home.call('DELETE', `/v1/sandboxes/${operators.json.id}`)
    },
  )

  test.skipIf(out)('opens a terminal', { timeout: MINUTES }, async () => {
    const sandbox = await client.create({})
    const url = `${home.server.url.replace('http', 'ws')}/v1/sandboxes/${sandbox.id}/pty?cols=90&rows=30&command=sh`
    const socket = new WebSocket(url, ['ringfence', `bearer.${home.admin}`])
    let text = ''
    socket.on('message', (data: Buffer) => {
      text += data.toString()
    })
    await new Promise((resolve, reject) => socket.once('open', resolve).once('error', reject))
    socket.send(Buffer.from('stty size\n'))
    await until(() => text.includes('30 90'))
    socket.send(Buffer.from('exit 5\n'))
    await until(() => text.includes('"code":5'))
    await sandbox.close()
  })

  test.skipIf(out)('forwards a port of a sandbox', { timeout: MINUTES }, async () => {
    const sandbox = await client.create({ network: { mode: 'loopback' } })
    await sandbox.files.write('/tmp/serve.py', SERVER)
    await sandbox.exec(['python3', '/tmp/serve.py'], { background: true })
    const call = () => home.call('GET', `/v1/sandboxes/${sandbox.id}/ports/8000/x`)
    await until(async () => (await call()).text === 'inside /x')
    await sandbox.close()
  })

  test.skipIf(out)(
    'connects sandboxes to the network only through the proxy',
    { timeout: MINUTES },
    async () => {
      const outside = createServer((_, answer) => answer.end('from outside'))
      await new Promise<void>((resolve) => outside.listen(0, '127.0.0.1', resolve))
      const { port } = outside.address() as AddressInfo
      const sandbox = await client.create({ network: { mode: 'fetch', allow_hosts: [`127.0.0.1:${port}`] } })
      await sandbox.files.write('/tmp/get.py', GET)
      const got = (url: string, way: string) => sandbox.exec(['python3', '/tmp/get.py', url, way])
      expect(await got(`http://127.0.0.1:${port}/`, 'proxy')).toMatchObject({ stdout: 'from outside\n' })
      expect((await got('http://127.0.0.2/', 'proxy')).stderr).toContain('403')
      expect((await got(`http://127.0.0.1:${port}/`, 'straight')).stderr).toContain('refused')
      await sandbox.close()
      outside.close()
    },
  )

  test.skipIf(out)('pauses, resumes, snapshots and forks', { timeout: MINUTES }, async () => {
    const sandbox = await client.create({})
    await sandbox.exec('echo one > /tmp/note')
    await sandbox.pause()
    await expect(sandbox.exec('true')).rejects.toMatchObject({ code: 'wrong-state' })
    await sandbox.resume()
    const kept = await sandbox.snapshot('kept')
    const forked = await sandbox.fork()
    await sandbox.exec('echo two > /tmp/note')
    const read = async (id: string): Promise<string> =>
      (await home.call('POST', `/v1/sandboxes/${id}/exec`, { body: { command: 'cat /tmp/note' } })).json
        .stdout
    expect(forked.backend).toBe(backend)
    expect(await read(forked.id)).toBe('one\n')
    await sandbox.close()
    const later = await client.create({ template: kept.id })
    expect(await read(later.id)).toBe('one\n')
    await later.close()
    await home.call('DELETE', `/v1/sandboxes/${forked.id}`)
    expect((await home.call('DELETE', '/v1/snapshots/kept')).status).toBe(204)
  })

  test.skipIf(out)('reports a command that exceeded its memory limit', { timeout: MINUTES }, async () => {
    const sandbox = await client.create({ limits: { memoryMb: 64 } })
    const eat = 'python3 -c "x = bytearray(400 * 1024 * 1024); x[::4096] = b\'1\' * len(x[::4096])"'
    expect(await sandbox.exec(eat)).toMatchObject({ outcome: { kind: 'stopped', limit: 'memory' } })
    await sandbox.close()
  })

  test.skipIf(out)('works with the E2B client', { timeout: MINUTES }, async () => {
    const { Sandbox } = await strangers('e2b')
    const { secret } = await home.server.parts.keys.create({ e2b: true })
    const { url } = home.server
    const options = { apiKey: secret, apiUrl: url, sandboxUrl: url }
    // SECURITY: private directories are on the host's disk; a backend that cannot limit them does not get them.
    if (backend === 'gvisor') {
      await expect(Sandbox.create(options)).rejects.toThrow(/cannot guarantee: limit\.disk .*\[e2b\] waive/)
      return
    }
    const sandbox = await Sandbox.create(options)
    const [own] = (await client.list()).items
    expect(own?.backend).toBe(backend)
    expect((await sandbox.commands.run('echo $HOME; id -un')).stdout).toBe('/home/user\nuser\n')
    await sandbox.files.write('/home/user/note', 'hello')
    expect(await sandbox.files.read('note')).toBe('hello')
    const { snapshotId } = await sandbox.createSnapshot()
    const second = await Sandbox.create(snapshotId, options)
    expect(await second.files.read('note')).toBe('hello')
    await Promise.all([sandbox.kill(), second.kill()])
  })

  test.runIf(backend === 'docker' && !out)(
    'removes containers of crashed servers at start, and no others',
    {
      timeout: MINUTES,
    },
    async () => {
      const call = new ContainerEngine({ socket: engine?.socket as string })
      const state = mkdtempSync(join(tmpdir(), 'rf-reaped-'))
      const owner = createHash('sha256').update(`${state}|${process.getuid?.()}`).digest('hex').slice(0, 16)
      const leave = async (whose: string, epoch: string): Promise<string> => {
        const Labels = { 'ringfence.owner': whose, 'ringfence.epoch': epoch }
        const body = { Image: 'ringfence/default', Cmd: ['true'], Labels }
        return (
          (await call.call({ method: 'POST', path: '/containers/create', body })).body as { Id: string }
        ).Id
      }
      const orphan = await leave(owner, ownEpoch().replace(/\.\d+-\d+$/, '.1-1'))
      const alive = await leave(owner, ownEpoch())
      const foreign = await leave('somebody', 'dead')
      const there = async (id: string): Promise<boolean> =>
        (await call.call({ method: 'GET', path: `/containers/${id}/json` }, [404])).status === 200
      const second = await startTestServer('', {
        env: {
          PATH: process.env.PATH,
          HOME: state,
          RINGFENCE_HOME: state,
          RINGFENCE_DOCKER_SOCKET: engine?.socket,
        },
      })
      try {
        await until(async () => !(await there(orphan)))
        expect([await there(alive), await there(foreign)]).toEqual([true, true])
      } finally {
        await second.close()
        for (const id of [alive, foreign]) await call.call({ method: 'DELETE', path: `/containers/${id}` })
        rmSync(state, { recursive: true, force: true })
      }
    },
  )
})
