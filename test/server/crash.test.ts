import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { Agent, request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { descendants, isAlive, type Process, startProcess, until } from './process.ts'
import { FULL } from './test-server.ts'

/** The server as a process: killed at any moment, stopped by a signal, without disk space. No acknowledged work is lost. */

const dirs: string[] = []
const tempHome = (): string => {
  const dir = mkdtempSync(join(tmpdir(), 'rf-crash-'))
  dirs.push(dir)
  return dir
}
afterAll(() => {
  for (const dir of dirs) rmSync(dir, { recursive: true, force: true })
})

/** The answers that clients received. */
type Journal = {
  readonly created: Set<string>
  readonly deleted: Set<string>
  readonly execs: Map<string, string>
  duplicates: number
}

async function load(server: Process, journal: Journal, stop: () => boolean): Promise<void> {
  while (!stop()) {
    try {
      const made = await server.call('POST', '/v1/sandboxes', { body: {} })
      if (made.status !== 201) continue
      const id = made.json.id as string
      if (journal.created.has(id)) journal.duplicates++
      journal.created.add(id)
      const ran = await server.call('POST', `/v1/sandboxes/${id}/exec`, { body: { argv: ['true'] } })
      if (ran.status === 200) journal.execs.set(ran.json.exec_id, id)
      if (Math.random() < 0.3) continue
      const gone = await server.call('DELETE', `/v1/sandboxes/${id}`)
      if (gone.status === 200) journal.deleted.add(id)
    } catch {
      // The connection died with the server: nothing was acknowledged.
      return
    }
  }
}

describe('kill -9 of the server', () => {
  const times = FULL ? 200 : 4

  test(`${times} times at a random moment under load: the next start recovers`, async () => {
    const home = tempHome()
    const neighbourHome = tempHome()
    const neighbour = await startProcess(neighbourHome)
    const theirs = (await neighbour.call('POST', '/v1/sandboxes', { body: {} })).json.id as string
    const journal: Journal = { created: new Set(), deleted: new Set(), execs: new Map(), duplicates: 0 }
    let key: string | undefined
    let slowest = 0
    let left: string[] = []
    let killedAt = 0
    // Ended with their parent, or by the next start: bubblewrap itself can be left behind in the middle of its start.
    const reaped = async (): Promise<void> => {
      expect(await until(() => !left.some(isAlive), 5000), 'orphans').toBe(true)
      if (left.length > 0) slowest = Math.max(slowest, performance.now() - killedAt)
    }
    for (let round = 0; round < times; round++) {
      const server = await startProcess(home, key ? { key } : {})
      key = server.key
      await reaped()
      await settled(server, journal)
      let over = false
      const clients = Array.from({ length: 6 }, () => load(server, journal, () => over))
      await new Promise((resolve) => setTimeout(resolve, Math.random() * (FULL ? 300 : 1200)))
      // Stopped first, so that no process starts between listing and killing.
      process.kill(server.pid, 'SIGSTOP')
      const children = descendants(server.pid)
      process.kill(server.pid, 'SIGKILL')
      const start = performance.now()
      await server.ended
      over = true
      await Promise.all(clients)
      left = children
      killedAt = start
      // Sometimes killed again while it recovers.
      if (round % 4 === 3) await killedWhileStarting(home, key)
    }
    const last = await startProcess(home, key ? { key } : {})
    await reaped()
    await settled(last, journal, true)
    expect(journal.duplicates).toBe(0)
    expect((await neighbour.call('GET', `/v1/sandboxes/${theirs}`)).json.state).toBe('ready')
    const ran = await neighbour.call('POST', `/v1/sandboxes/${theirs}/exec`, { body: { argv: ['true'] } })
    expect(ran.json.outcome).toEqual({ kind: 'exited', code: 0 })
    console.log(
      `${times} kills: ${journal.created.size} creates, ${journal.execs.size} commands, ${journal.deleted.size} deletes acknowledged and kept; orphans gone in ${slowest.toFixed(0)} ms at most`,
    )
    for (const server of [last, neighbour]) {
      server.child.kill('SIGTERM')
      expect((await server.ended).code).toBe(0)
    }
  }, 3_600_000)

  test.runIf(process.getuid?.() === 0)(
    'cgroups of the killed server are removed by the next start',
    async () => {
      const groups = (): string[] =>
        execFileSync(
          'sh',
          ['-c', 'ls -d /sys/fs/cgroup/*/ringfence-* /sys/fs/cgroup/ringfence-* 2>/dev/null || true'],
          {
            encoding: 'utf8',
          },
        )
          .split('\n')
          .filter((line) => line.includes(`-${pid}-`))
      const home = tempHome()
      const server = await startProcess(home)
      const { pid } = server
      const made = await server.call('POST', '/v1/sandboxes', {
        body: { limits: { memoryMb: 256, pids: 64 } },
      })
      expect(made.status, made.text).toBe(201)
      expect(groups().length).toBeGreaterThan(0)
      server.child.kill('SIGKILL')
      await server.ended
      const next = await startProcess(home)
      expect(await until(() => groups().length === 0, 5000)).toBe(true)
      next.child.kill('SIGTERM')
      await next.ended
    },
  )

  async function killedWhileStarting(home: string, key: string | undefined): Promise<void> {
    const starting = startProcess(home, key ? { key } : {}).catch(() => undefined)
    await new Promise((resolve) => setTimeout(resolve, Math.random() * 400))
    const server = await starting
    server?.child.kill('SIGKILL')
    await server?.ended
  }

  /** Everything that was acknowledged exists, no sandbox is between two states, and the audit log verifies. */
  async function settled(server: Process, journal: Journal, thorough = false): Promise<void> {
    const created = [...journal.created].slice(thorough ? 0 : -30)
    for (const id of created) {
      const { status, json } = await server.call('GET', `/v1/sandboxes/${id}`)
      expect(status, id).toBe(200)
      expect(['destroyed', 'failed'], `${id} is ${json.state}`).toContain(json.state)
      if (journal.deleted.has(id)) expect(json).toMatchObject({ state: 'destroyed', reason: 'killed' })
      else if (json.state === 'failed') expect(json.reason).toMatch(/crashed/)
    }
    for (const [exec, id] of [...journal.execs].slice(thorough ? 0 : -30)) {
      const { json } = await server.call('GET', `/v1/sandboxes/${id}/execs/${exec}`)
      expect(json).toMatchObject({ state: 'ended', outcome: { kind: 'exited', code: 0 } })
    }
    expect((await server.call('GET', '/v1/audit/verify')).json).toMatchObject({ ok: true })
  }
})

describe('signals to the server', () => {
  test('SIGTERM waits for running commands, refuses new ones, leaves no processes, and exits with 0', async () => {
    const server = await startProcess(tempHome())
    const { id } = (await server.call('POST', '/v1/sandboxes', { body: {} })).json
    const running = server.call('POST', `/v1/sandboxes/${id}/exec`, {
      body: { command: 'sleep 1; echo done' },
    })
    await until(async () => (await server.call('GET', `/v1/sandboxes/${id}`)).json.state === 'executing')
    const children = descendants(server.pid)
    expect(children.length).toBeGreaterThan(0)
    server.child.kill('SIGTERM')
    await until(async () => (await server.call('GET', '/readyz')).status === 503)
    const late = await server.call('POST', '/v1/sandboxes', { body: {} })
    expect(late).toMatchObject({ status: 503, json: { code: 'draining' } })
    expect(late.headers.get('retry-after')).toBe('10')
    expect((await running).json).toMatchObject({ stdout: 'done\n', outcome: { kind: 'exited', code: 0 } })
    expect(await server.ended).toEqual({ code: 0, signal: null })
    expect(children.filter(isAlive)).toEqual([])
  })

  test('a second SIGTERM does not wait', async () => {
    const server = await startProcess(tempHome())
    const { id } = (await server.call('POST', '/v1/sandboxes', { body: {} })).json
    const running = server
      .call('POST', `/v1/sandboxes/${id}/exec`, { body: { argv: ['sleep', '60'] } })
      .catch(() => undefined)
    await until(async () => (await server.call('GET', `/v1/sandboxes/${id}`)).json.state === 'executing')
    const children = descendants(server.pid)
    server.child.kill('SIGTERM')
    await until(() => server.said().includes('shutting down'))
    server.child.kill('SIGTERM')
    expect((await server.ended).code).toBe(0)
    await running
    expect(children.filter(isAlive)).toEqual([])
  })

  test('SIGHUP reloads the configuration, and an invalid file changes nothing', async () => {
    const home = tempHome()
    const file = join(home, 'c.toml')
    writeFileSync(file, '')
    const server = await startProcess(home, { args: ['--config', file] })
    writeFileSync(file, 'nonsense = ')
    server.child.kill('SIGHUP')
    expect(await until(() => server.said().includes('not reloaded'))).toBe(true)
    writeFileSync(file, '[policy]\nmax_cpus = 2\n')
    server.child.kill('SIGHUP')
    expect(await until(() => /reloaded; policy [0-9a-f]{16}/.test(server.said()))).toBe(true)
    server.child.kill('SIGTERM')
    expect((await server.ended).code).toBe(0)
  })

  test('a second server on the same state directory is refused', async () => {
    const home = tempHome()
    const server = await startProcess(home)
    await expect(startProcess(home)).rejects.toThrow(/already uses/)
    server.child.kill('SIGTERM')
    await server.ended
  })
})

describe.runIf(process.getuid?.() === 0)('exhausted resources', () => {
  test('a full disk: new work is refused with a reason, and the server recovers when space is free', async () => {
    const home = tempHome()
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64m,mode=700', 'tmpfs', home])
    try {
      const server = await startProcess(home)
      const { id } = (await server.call('POST', '/v1/sandboxes', { body: {} })).json
      await server.call('POST', `/v1/sandboxes/${id}/exec`, { body: { argv: ['true'] } })
      const filler = join(home, 'filler')
      execFileSync('sh', ['-c', `cat /dev/zero > ${filler} 2>/dev/null || true`])
      const ready = await server.call('GET', '/readyz')
      expect(ready).toMatchObject({ status: 503, json: { ready: false } })
      const children = descendants(server.pid).length
      const ran: number[] = []
      for (let at = 0; at < 5; at++) {
        const answer = await server.call('POST', `/v1/sandboxes/${id}/exec`, {
          body: { command: `echo x >> /tmp/ran` },
        })
        ran.push(answer.status)
      }
      const made = await server.call('POST', '/v1/sandboxes', { body: {} })
      expect([503]).toContain(made.status)
      expect(ran.filter((status) => status !== 200 && status !== 503)).toEqual([])
      expect(ran).toContain(503)
      expect(descendants(server.pid).length).toBeLessThanOrEqual(children)
      rmSync(filler)
      expect(await until(async () => (await server.call('GET', '/readyz')).status === 200, 5000)).toBe(true)
      // Commands answered with 503 did not run.
      const counted = await server.call('POST', `/v1/sandboxes/${id}/exec`, {
        body: { command: 'wc -l < /tmp/ran || echo 0' },
      })
      expect(Number(counted.json.stdout)).toBe(ran.filter((status) => status === 200).length)
      expect((await server.call('POST', '/v1/sandboxes', { body: {} })).status).toBe(201)
      expect((await server.call('GET', '/v1/audit/verify')).json).toMatchObject({ ok: true })
      server.child.kill('SIGTERM')
      expect((await server.ended).code).toBe(0)
    } finally {
      execFileSync('umount', ['-l', home])
    }
  })

  test('a read-only state directory stops the start with a clear error', async () => {
    const home = tempHome()
    mkdirSync(join(home, 'state'))
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'ro', 'tmpfs', join(home, 'state')])
    try {
      await expect(startProcess(home)).rejects.toThrow(/EROFS|read-only|READONLY/)
    } finally {
      execFileSync('umount', [join(home, 'state')])
    }
  })

  test('no file descriptors left: new work is refused with a reason, and the server recovers', async () => {
    const server = await startProcess(tempHome(), { wrap: ['bash', '-c', 'ulimit -n 60; exec "$@"', 'sh'] })
    // A connection opened before, for later requests.
    const agent = new Agent({ keepAlive: true, maxSockets: 1 })
    const ask = (method: string, path: string): Promise<{ status: number; text: string }> =>
      new Promise((resolve, reject) => {
        const asked = request(
          `${server.url}${path}`,
          {
            method,
            agent,
            headers: { authorization: `Bearer ${server.key}`, 'content-type': 'application/json' },
          },
          (response) => {
            let text = ''
            response
              .on('data', (chunk) => (text += chunk))
              .on('end', () => resolve({ status: response.statusCode ?? 0, text }))
          },
        )
        asked.on('error', reject)
        asked.end(method === 'POST' ? '{}' : undefined)
      })
    expect((await ask('GET', '/readyz')).status).toBe(200)
    const { connect } = await import('node:net')
    const port = Number(new URL(server.url).port)
    const sockets = Array.from({ length: 80 }, () => connect(port, '127.0.0.1').on('error', () => {}))
    expect(await until(async () => (await ask('GET', '/readyz')).status === 503, 5000)).toBe(true)
    const made = await ask('POST', '/v1/sandboxes')
    expect(made.status, made.text).toBeGreaterThanOrEqual(500)
    expect(made.text).not.toContain('"internal"')
    // Long enough for the server to search for leftovers of an earlier run, which needs descriptors.
    await new Promise((resolve) => setTimeout(resolve, 2500))
    for (const socket of sockets) socket.destroy()
    expect(await until(async () => (await ask('GET', '/readyz')).status === 200, 5000)).toBe(true)
    expect((await ask('POST', '/v1/sandboxes')).status).toBe(201)
    agent.destroy()
    server.child.kill('SIGTERM')
    expect((await server.ended).code).toBe(0)
  })
})
