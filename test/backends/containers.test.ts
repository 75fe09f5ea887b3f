import { execFile, execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { createServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Backend } from '../../src/backends/backend.ts'
import type { ContainerSandbox } from '../../src/backends/container-handle.ts'
import { poolKey } from '../../src/backends/container-pool.ts'
import { type DockerParts, docker } from '../../src/backends/docker/backend.ts'
import { gvisor } from '../../src/backends/gvisor/backend.ts'
import { ImageStore } from '../../src/backends/images/store.ts'
import { native } from '../../src/backends/native/backend.ts'
import { SandboxRegistry } from '../../src/backends/registry.ts'
import { ownEpoch } from '../../src/host/process/orphans.ts'
import { processKey } from '../../src/host/system.ts'
import type { Plan } from '../../src/model/plan.ts'
import type { Isolation } from '../../src/model/spec.ts'
import { isFine, runSuite } from '../../src/prove/suite.ts'
import { ORDINARY, type Report, suiteAs } from '../conformance/as-user.ts'
import {
  GROUPS,
  skipped,
  startDocker,
  type TestEngine,
  testImages,
  testState,
} from '../conformance/engines.ts'
import { makeWorld, packageRoot, planOf } from '../conformance/world.ts'
import { canHaveRoot } from '../root/root-host.ts'

const MINUTES = 60_000
const FULL = process.env.RINGFENCE_FULL === '1'
const agent = join(packageRoot(), 'dist', 'guest', 'ringfence-agent')
const probePlan = (isolation?: Isolation) =>
  planOf({ limits: { wallMs: 10_000 }, ...(isolation ? { isolation } : {}) })
const run = promisify(execFile)

const dockerBackend = (sockets: readonly string[], more: Partial<DockerParts> = {}) =>
  docker({
    agent,
    probePlan,
    images: testImages(),
    stateDir: testState(),
    sockets,
    owner: 'test',
    epoch: ownEpoch(),
    ...more,
  })

async function conformance(backend: string, few: number | undefined, ...more: string[]): Promise<Report> {
  const args = [
    join(packageRoot(), 'dist', 'test', 'conformance.js'),
    '--json',
    '--backend',
    backend,
    ...more,
  ]
  if (few !== undefined) args.push('--few', String(few))
  const { stdout } = await run(process.execPath, args, { cwd: packageRoot(), maxBuffer: 1e8 }).catch(
    (error: { stdout?: string; stderr?: string }) => {
      if (error.stdout) return { stdout: error.stdout }
      throw new Error(error.stderr)
    },
  )
  return JSON.parse(stdout) as Report
}

/** Debian's first gVisor does not know a flag that `stat` sets; see src/backends/gvisor/README.md. */
const isOldFlag = (use: string): boolean =>
  use === 'modes follow the umask' && execFileSync('runsc', ['--version']).includes('2022')

const SOME =
  'fs.read,fs.write,fs.protect,proc.hidden,proc.between,secrets.between,limit.memory,limit.pids,cleanup'

describe.concurrent('every guarantee that a container engine claims holds against its attacks', () => {
  test.skipIf(skipped('docker'))('docker', { timeout: 10 * MINUTES }, async () => {
    const { rows, uses } = await conformance('docker', FULL ? undefined : 1)
    expect(rows.filter((row) => !isFine(row))).toEqual([])
    expect(uses.filter((use) => !use.ok)).toEqual([])
    expect(rows.filter((row) => row.verdict === 'held').length).toBeGreaterThanOrEqual(FULL ? 80 : 19)
    expect(rows.find((row) => row.guarantee === 'kernel.separate')?.verdict).toBe('refused')
  })

  test.skipIf(skipped('docker') || !canHaveRoot)(
    'docker, as root in a sandbox with a writable root',
    { timeout: 10 * MINUTES },
    async () => {
      const { rows } = await conformance('docker', FULL ? undefined : 1, '--root')
      expect(rows.filter((row) => !isFine(row))).toEqual([])
      expect(rows.filter((row) => row.verdict === 'held').length).toBeGreaterThanOrEqual(FULL ? 50 : 17)
    },
  )

  test.skipIf(skipped('gvisor'))('gvisor', { timeout: 10 * MINUTES }, async () => {
    const { rows, uses } = await conformance('gvisor', FULL ? undefined : 1)
    expect(rows.filter((row) => !isFine(row))).toEqual([])
    expect(uses.filter((use) => !use.ok && !isOldFlag(use.name))).toEqual([])
    expect(rows.find((row) => row.guarantee === 'kernel.separate')?.verdict).toBe('held')
    expect(rows.find((row) => row.guarantee === 'fs.protect')?.verdict).toBe('refused')
  })

  test.skipIf(skipped('gvisor') || process.getuid?.() !== 0)(
    'gvisor, as an unprivileged user',
    { timeout: 10 * MINUTES },
    async () => {
      const { rows, uses } = await suiteAs(ORDINARY, '--backend', 'gvisor', ...(FULL ? [] : ['--few', '1']))
      expect(rows.filter((row) => !isFine(row))).toEqual([])
      expect(uses.filter((use) => !use.ok && !isOldFlag(use.name))).toEqual([])
      expect(rows.find((row) => row.guarantee === 'kernel.separate')?.verdict).toBe('held')
      expect(rows.filter((row) => row.verdict === 'held').length).toBeGreaterThanOrEqual(15)
    },
  )

  test.skipIf(skipped('podman'))('docker, through Podman’s socket', { timeout: 10 * MINUTES }, async () => {
    const { rows } = await conformance('podman', FULL ? undefined : 1, ...(FULL ? [] : ['--only', SOME]))
    expect(rows.filter((row) => !isFine(row))).toEqual([])
  })
})

/** Counts of everything that a container of this process may leave behind on the host. */
function leftovers(): Readonly<Record<string, number>> {
  const groups = (dir: string): number => {
    try {
      return readdirSync(dir, { recursive: true }).length
    } catch {
      return 0
    }
  }
  const processes = (file: 'cmdline' | 'cgroup', pattern: RegExp): number =>
    readdirSync('/proc').filter((pid) => {
      try {
        return pattern.test(readFileSync(`/proc/${pid}/${file}`, 'latin1'))
      } catch {
        return false
      }
    }).length
  const key = processKey(process.pid)
  return {
    groups: groups(`/sys/fs/cgroup/pids/${GROUPS}`) + groups(`/sys/fs/cgroup/memory/${GROUPS}`),
    runsc: readdirSync('/sys/fs/cgroup/memory').filter((name) =>
      name.startsWith(`ringfence-container-${key}`),
    ).length,
    descriptors: readdirSync('/proc/self/fd').length,
    directories: readdirSync(join(testState(), 'run')).filter((name) => name.startsWith(`container-${key}`))
      .length,
    agents: processes('cgroup', new RegExp(`/${GROUPS}/`)),
    gofers: processes('cmdline', new RegExp(`runsc.*container-${key}`)),
  }
}

/** Counts that are still higher than before after 5 s. */
async function more(before: Readonly<Record<string, number>>): Promise<readonly string[]> {
  const grown = (): readonly string[] =>
    Object.entries(leftovers())
      .filter(([name, count]) => count > (before[name] ?? 0))
      .map(([name, count]) => `${name}: ${before[name]} before, now ${count}`)
  for (let tries = 0; tries < 50 && grown().length > 0; tries++)
    await new Promise((resolve) => setTimeout(resolve, 100))
  return grown()
}

async function cycles(backend: Backend, count: number): Promise<void> {
  for (let cycle = 0; cycle < count; cycle++) {
    const sandbox = await backend.open(planOf({ backend: backend.name, waive: ['fs.protect'] }))
    const { stdout } = await sandbox.exec({ argv: ['echo', `cycle ${cycle}`] })
    expect(Buffer.from(stdout).toString()).toBe(`cycle ${cycle}\n`)
    await sandbox.close()
  }
}

describe.skipIf(skipped('docker'))('docker, with a real engine', () => {
  let engine: TestEngine
  let workspace: string
  beforeAll(async () => {
    engine = await startDocker()
    workspace = mkdtempSync(join(tmpdir(), 'rf-containers-'))
  }, 2 * MINUTES)
  afterAll(async () => {
    rmSync(workspace, { recursive: true, force: true })
    await engine.close()
  }, MINUTES)

  const ids = async (): Promise<readonly string[]> => {
    const { ContainerEngine } = await import('../../src/host/net/container-engine.ts')
    const { body } = await new ContainerEngine({ socket: engine.socket }).call({
      method: 'GET',
      path: '/containers/json?all=1',
    })
    return (body as { Id: string }[]).map(({ Id }) => Id).sort()
  }
  const said = async (sandbox: ContainerSandbox, line: string): Promise<string> =>
    Buffer.from((await sandbox.exec({ argv: ['sh', '-c', line] })).stdout).toString()

  test('leaves no containers, cgroups, processes or descriptors after repeated create/close cycles', {
    timeout: 30 * MINUTES,
  }, async () => {
    const backend = dockerBackend([engine.socket])
    await cycles(backend, 1)
    const before = leftovers()
    await cycles(backend, FULL ? 500 : 4)
    expect(await more(before)).toEqual([])
    expect(await ids()).toEqual([])
  })

  test('pause stops all processes, resume continues them', { timeout: MINUTES }, async () => {
    const sandbox = (await dockerBackend([engine.socket]).open(planOf({ workspace }))) as ContainerSandbox
    const running = await sandbox.start({
      argv: ['sh', '-c', 'while :; do date +%N >> beat; sleep 0.05; done'],
    })
    await new Promise((resolve) => setTimeout(resolve, 500))
    await sandbox.pause()
    const first = readFileSync(join(workspace, 'beat'), 'utf8')
    await new Promise((resolve) => setTimeout(resolve, 400))
    expect(readFileSync(join(workspace, 'beat'), 'utf8')).toBe(first)
    await expect(sandbox.exec({ argv: ['true'] })).rejects.toThrow(/paused/)
    await sandbox.resume()
    await new Promise((resolve) => setTimeout(resolve, 400))
    expect(readFileSync(join(workspace, 'beat'), 'utf8')).not.toBe(first)
    running.signal('SIGKILL')
    await sandbox.pause()
    await sandbox.close()
    expect(await ids()).toEqual([])
  })

  test('counts OOM kills reported by the engine', { timeout: MINUTES }, async () => {
    const backend = dockerBackend([engine.socket])
    const sandbox = (await backend.open(planOf({ limits: { memoryMb: 64 } }))) as ContainerSandbox
    expect(sandbox.container.oomKills).toBe(0)
    const eat = 'x = bytearray(400 * 1024 * 1024); x[::4096] = b"1" * len(x[::4096])'
    const { outcome } = await sandbox.exec({ argv: ['python3', '-c', eat] })
    expect(outcome).toMatchObject({ kind: 'stopped', limit: 'memory' })
    await until(async () => sandbox.container.oomKills > 0)
    expect(sandbox.container.oomKills).toBeGreaterThan(0)
    await sandbox.close()
  })

  test(
    'hands out a warm container only to the same owner with the same plan, and only once',
    async () => {
      const backend = dockerBackend([engine.socket], { ready: 1 })
      const open = async (owner: string, spec: Record<string, unknown> = {}): Promise<ContainerSandbox> =>
        (await backend.open(planOf({ backend: 'docker', ...spec }), { owner })) as ContainerSandbox
      const host =
        'cat /proc/sys/kernel/random/boot_id /proc/self/mountinfo | sha256sum; echo mine > /tmp/mine; ls /tmp'
      const first = await open('ann')
      await said(first, host)
      await until(async () => (await ids()).length === 2)
      const waiting = await ids()
      const other = await open('bob')
      const different = await open('ann', { env: { A: 'b' } })
      // Ann's warm container is untouched: two others were created, each with a warm container of its own.
      await until(async () => (await ids()).length >= 6)
      expect((await ids()).filter((id) => waiting.includes(id))).toEqual(waiting)
      const second = await open('ann')
      expect(await said(second, 'ls /tmp')).toBe('')
      await Promise.all([first, second, other, different].map((one) => one.close()))
      await backend.close()
      expect(await ids()).toEqual([])
    },
    MINUTES,
  )

  test('refuses a sandbox if the engine does not apply its limits', { timeout: MINUTES }, async () => {
    const loosen = (body: Record<string, unknown>): Record<string, unknown> => ({
      ...body,
      HostConfig: { ...(body.HostConfig as object), Memory: 0, MemorySwap: 0 },
    })
    const backend = dockerBackend([engine.socket], { sabotage: loosen })
    await expect(backend.open(planOf({ limits: { memoryMb: 100 } }))).rejects.toThrow(
      /does not enforce the limits: memoryMb/,
    )
    expect(await ids()).toEqual([])
  })

  test('refuses a sandbox if a mounted directory is not the one that the policy checked', {
    timeout: MINUTES,
  }, async () => {
    const secret = mkdtempSync(join(tmpdir(), 'rf-secret-'))
    const swap = (body: Record<string, unknown>): Record<string, unknown> =>
      JSON.parse(JSON.stringify(body).replaceAll(`"Source":"${workspace}"`, `"Source":"${secret}"`))
    const backend = dockerBackend([engine.socket], { sabotage: swap })
    await expect(backend.open(planOf({ workspace }))).rejects.toThrow(/replaced/)
    expect(await ids()).toEqual([])
    rmSync(secret, { recursive: true })
  })

  test.skipIf(skipped('gvisor'))(
    'with gVisor as runtime claims kernel.separate, and refuses fs.protect',
    { timeout: MINUTES },
    async () => {
      const backend = dockerBackend([engine.socket], { runtime: 'runsc' })
      const probe = await backend.probe()
      expect(probe).toMatchObject({
        available: true,
        guarantees: expect.arrayContaining(['kernel.separate']),
      })
      const spec = { workspace, waive: ['fs.protect'], limits: { memoryMb: 128, pids: 30 } }
      await expect(backend.open(planOf({ workspace }))).rejects.toMatchObject({ code: 'missing-guarantee' })
      const sandbox = (await backend.open(planOf(spec))) as ContainerSandbox
      expect(await sandbox.layers()).toContain('gvisor')
      expect(await said(sandbox, 'cat /proc/version; echo mine > there')).toMatch(/^Linux version 4\.4\.0/)
      expect(readFileSync(join(workspace, 'there'), 'utf8')).toBe('mine\n')
      const eat = 'exec head -c 400M /dev/zero | tail'
      const { outcome } = await sandbox.exec({ argv: ['sh', '-c', eat] })
      expect(outcome).toEqual({ kind: 'stopped', limit: 'memory' })
      await sandbox.close()
      const secret = mkdtempSync(join(tmpdir(), 'rf-secret-'))
      const swap = (body: Record<string, unknown>): Record<string, unknown> =>
        JSON.parse(JSON.stringify(body).replaceAll(`"Source":"${workspace}"`, `"Source":"${secret}"`))
      const bent = dockerBackend([engine.socket], { runtime: 'runsc', sabotage: swap })
      await expect(bent.open(planOf(spec))).rejects.toThrow(/replaced/)
      rmSync(secret, { recursive: true })
      expect(await ids()).toEqual([])
    },
  )

  const host =
    (fields: Record<string, unknown>) =>
    (body: Record<string, unknown>): Record<string, unknown> => ({
      ...body,
      NetworkDisabled: false,
      HostConfig: { ...(body.HostConfig as object), ...fields },
    })
  test.each([
    ['the host’s network', { NetworkMode: 'host' }, 'net.offline', /^broken$/],
    ['the host’s processes', { PidMode: 'host' }, 'proc.hidden', /no PID namespace of its own/],
    ['the host’s shared memory', { IpcMode: 'host', ShmSize: 0 }, 'ipc.private', /^broken$/],
    ['no memory limit', { Memory: 0, MemorySwap: 0 }, 'limit.memory', /does not enforce the limits/],
  ] as const)(
    'the conformance suite detects a sabotaged container: %s',
    { timeout: MINUTES },
    async (_, fields, guarantee, caught) => {
      const world = await makeWorld()
      const control = native({ ...process.env, ...world.env } as Record<string, string>)
      try {
        const backend = dockerBackend([engine.socket], { sabotage: host(fields) })
        const verdict = await runSuite(backend, control, world, { only: [guarantee], few: 1 }).then(
          (rows) => rows[0]?.verdict,
          (error: Error) => error.message,
        )
        // Either the attack succeeds, or the agent detects the sabotage at once.
        expect(verdict).toMatch(caught)
      } finally {
        await world.close()
      }
    },
  )

  test('reports an engine that hangs as unavailable after a deadline', { timeout: MINUTES }, async () => {
    const backend = dockerBackend([engine.socket], { deadlineMs: 1500 })
    process.kill(engine.pid, 'SIGSTOP')
    try {
      await expect(backend.open(planOf({}))).rejects.toMatchObject({ code: 'backend-unavailable' })
      const probe = await backend.probe()
      expect(probe).toMatchObject({ available: false, reason: expect.stringMatching(/in time/) })
    } finally {
      process.kill(engine.pid, 'SIGCONT')
    }
    await until(async () => (await ids()).length === 0)
  })

  // Keep this test last: it stops the engine.
  test('ends the sandboxes of an engine that stops, and does not fall back to another backend', {
    timeout: MINUTES,
  }, async () => {
    const backend = dockerBackend([engine.socket])
    const registry = new SandboxRegistry().register(backend, 1)
    const plan = planOf({ workspace, backend: 'docker' })
    const sandbox = await (await registry.select(plan)).open(plan)
    const running = sandbox.exec({ argv: ['sleep', '100'] }).catch((error: unknown) => error)
    await engine.close()
    await sandbox.ended
    expect(await running).toMatchObject({ code: 'wrong-state' })
    await sandbox.close().catch(() => {})
    registry.invalidate('docker')
    await expect(registry.select(plan)).rejects.toMatchObject({ code: 'backend-unavailable' })
    await expect(backend.open(plan)).rejects.toMatchObject({ code: 'backend-unavailable' })
  })
})

describe('the pool key of warm containers', () => {
  const plan = planOf({ workspace: tmpdir(), read: ['/usr'], network: { mode: 'loopback' }, env: { A: 'b' } })
  type Json = { readonly [key: string]: unknown } | readonly unknown[]
  /** The path of every value in a plan. */
  const pathsIn = (value: unknown, path: readonly string[] = []): readonly (readonly string[])[] =>
    typeof value === 'object' && value !== null
      ? [path, ...Object.entries(value as Json).flatMap(([key, inner]) => pathsIn(inner, [...path, key]))]
      : [path]
  const paths = pathsIn(plan).filter((path) => path.length > 0)
  const changed = (path: readonly string[], to: unknown): Plan => {
    const copy = structuredClone(plan) as unknown as Record<string, unknown>
    const at = path.slice(0, -1).reduce((inner, key) => inner[key] as Record<string, unknown>, copy)
    at[path.at(-1) as string] = to
    return copy as unknown as Plan
  }

  test('differs for every change of the plan and for every owner', () => {
    expect(paths.length).toBeGreaterThan(30)
    fc.assert(
      fc.property(fc.constantFrom(...paths), fc.jsonValue(), fc.string(), (path, to, owner) => {
        const other = changed(path, to)
        const same = JSON.stringify(other) === JSON.stringify(plan)
        expect(poolKey(other, 'ann') === poolKey(plan, 'ann')).toBe(same)
        expect(poolKey(plan, owner) === poolKey(plan, 'ann')).toBe(owner === 'ann')
      }),
    )
    expect(poolKey(structuredClone(plan) as Plan, 'ann')).toBe(poolKey(plan, 'ann'))
  })
})

async function until(done: () => Promise<boolean>): Promise<void> {
  for (let tries = 0; tries < 100 && !(await done()); tries++)
    await new Promise((resolve) => setTimeout(resolve, 100))
}

describe.skipIf(skipped('gvisor'))('gvisor', () => {
  const backend = gvisor({ agent, probePlan, images: testImages(), stateDir: testState() })
  const open = async (spec: Record<string, unknown>): Promise<ContainerSandbox> =>
    (await backend.open(planOf({ backend: 'gvisor', ...spec }))) as ContainerSandbox

  test('leaves no containers, cgroups, processes or descriptors after repeated create/close cycles', {
    timeout: 30 * MINUTES,
  }, async () => {
    await cycles(backend, 1)
    const before = leftovers()
    await cycles(backend, FULL ? 200 : 3)
    expect(await more(before)).toEqual([])
  })

  test('pauses and resumes', { timeout: MINUTES }, async () => {
    const sandbox = await open({})
    await sandbox.pause()
    await sandbox.resume()
    expect((await sandbox.exec({ argv: ['true'] })).outcome).toEqual({ kind: 'exited', code: 0 })
    await sandbox.close()
  })

  test('keeps an image from removal while a sandbox uses it', { timeout: 2 * MINUTES }, async () => {
    const stateDir = mkdtempSync(join(tmpdir(), 'rf-image-'))
    const images = new ImageStore(stateDir)
    await images.build('small', { kind: 'host', programs: ['sh', 'cat'] })
    const sandbox = await gvisor({ agent, probePlan, images, stateDir }).open(
      planOf({ backend: 'gvisor', image: 'small', waive: ['fs.protect'] }),
    )
    expect(() => images.remove('small')).toThrow(/is in use by ringfence-container-/)
    const { outcome } = await sandbox.exec({ argv: ['sh', '-c', 'cat /etc/passwd'] })
    expect(outcome).toEqual({ kind: 'exited', code: 0 })
    await sandbox.close()
    expect(images.remove('small')).toBe(true)
    expect(readdirSync(join(stateDir, 'images', 'roots'))).toEqual([])
    rmSync(stateDir, { recursive: true, force: true })
  })

  test('refuses a workspace with protected names unless fs.protect is waived', async () => {
    const workspace = mkdtempSync(join(tmpdir(), 'rf-gvisor-'))
    mkdirSync(join(workspace, '.git'))
    await expect(open({ workspace })).rejects.toMatchObject({ code: 'missing-guarantee' })
    rmSync(workspace, { recursive: true })
  })
})

/** Labelled fakes: sockets that are no container engine. */
describe('probing an engine (fake) that', () => {
  const fakes: Server[] = []
  const dir = mkdtempSync(join(tmpdir(), 'rf-fake-'))
  afterAll(() => {
    for (const server of fakes) server.close()
    rmSync(dir, { recursive: true, force: true })
  })
  const fake = async (name: string, answer: (socket: Socket) => void): Promise<string> => {
    const path = join(dir, name)
    const server = createServer((socket) => {
      socket.on('error', () => {})
      socket.once('data', () => answer(socket))
    })
    fakes.push(server)
    await new Promise<void>((resolve) => server.listen(path, resolve))
    return path
  }
  const http = (body: string): string =>
    `HTTP/1.1 200 OK\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`

  test.each<[string, (socket: Socket) => void, RegExp]>([
    ['does not answer', () => {}, /in time/],
    ['closes the connection', (socket) => socket.destroy(), /cannot be used/],
    ['speaks another protocol', (socket) => socket.end('SSH-2.0-x\r\n'), /cannot be used/],
    [
      'answers with JSON of the wrong shape',
      (socket) => socket.end(http('[]')),
      /no image id|no container id/,
    ],
    ['answers with HTML', (socket) => socket.end(http('<html>')), /no image id|no container id/],
    [
      'sends an endless answer',
      (socket) => {
        socket.write('HTTP/1.1 200 OK\r\n\r\n')
        const more = setInterval(() => socket.write(Buffer.alloc(1 << 20)), 1)
        socket.on('close', () => clearInterval(more))
      },
      /too long|in time/,
    ],
    [
      'answers after the deadline',
      (socket) => void setTimeout(() => socket.end(http('{}')), 4000).unref(),
      /in time/,
    ],
  ])('%s', { timeout: MINUTES }, async (name, answer, reason) => {
    const socket = await fake(name.replaceAll(' ', '-'), answer)
    const probe = await dockerBackend([socket], { deadlineMs: 700 }).probe()
    expect(probe).toMatchObject({ available: false, reason: expect.stringMatching(reason) })
  })

  test('does not exist', async () => {
    expect(await dockerBackend([join(dir, 'nobody')]).probe()).toMatchObject({
      available: false,
      reason: 'no container engine is running here',
      fix: expect.stringMatching(/apt-get install/),
    })
  })
})
