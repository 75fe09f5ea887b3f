import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { machineImages, machines, whyNoMachine } from '../backends/microvm-parts.ts'
import { testState } from '../conformance/engines.ts'
import { client, type Loose, type World, world } from './kit.ts'

const MINUTES = 60_000
const reason = whyNoMachine()
if (reason && process.env.CI) throw new Error(`microvm: ${reason}`)

/** A server whose sandboxes are virtual machines, on images and templates that were made before. */
const CONFIG =
  '[policy]\nallow_interactive = true\n[backends]\norder = ["microvm"]\nemulate = true\nready = 1\n'

describe.skipIf(reason !== undefined)('the E2B client on virtual machines', () => {
  let here: World
  let e2b: Loose
  let sandbox: Loose
  beforeAll(async () => {
    await machineImages()
    const warm = machines()
    await warm.probe()
    await warm.close()
    here = await world(CONFIG)
    const state = join(here.server.dir, 'state')
    for (const part of ['images', 'microvm']) {
      mkdirSync(state, { recursive: true })
      if (!existsSync(join(state, part)))
        execFileSync('cp', ['-rl', join(testState(), part), join(state, part)])
    }
    e2b = await client('e2b')
    sandbox = await e2b.Sandbox.create(here.options)
  }, 5 * MINUTES)
  afterAll(async () => {
    await sandbox?.kill()
    await here?.close()
  }, MINUTES)

  test('runs commands on a separate kernel', { timeout: MINUTES }, async () => {
    const { stdout } = await sandbox.commands.run('uname -r; cat /proc/sys/kernel/random/boot_id; pwd')
    const [release, boot, where] = stdout.split('\n')
    expect(release).toMatch(/cloud-amd64$/)
    expect(boot).not.toBe(
      execFileSync('cat', ['/proc/sys/kernel/random/boot_id'], { encoding: 'utf8' }).trim(),
    )
    expect(where).toBe('/home/user')
    const [row] = (await here.server.call('GET', '/v1/sandboxes')).json.items
    expect(row).toMatchObject({ backend: 'microvm', level: 'microvm' })
  })

  test('supports files, streams, background processes and ports', { timeout: MINUTES }, async () => {
    await sandbox.files.write('/home/user/note.txt', 'hello')
    expect(await sandbox.files.read('/home/user/note.txt')).toBe('hello')
    expect((await sandbox.files.list('/home/user')).map((one: Loose) => one.name)).toContain('note.txt')
    const pieces: string[] = []
    await sandbox.commands.run('echo one; sleep 0.2; echo two', {
      onStdout: (piece: string) => pieces.push(piece),
    })
    expect(pieces.join('')).toBe('one\ntwo\n')
    const background = await sandbox.commands.run('sleep 100', { background: true })
    expect((await sandbox.commands.list()).some((one: Loose) => one.pid === background.pid)).toBe(true)
    expect(await background.kill()).toBe(true)
    await expect(sandbox.commands.run('exit 3')).rejects.toMatchObject({ exitCode: 3 })
  })

  test('pauses and resumes, and a snapshot is a template', { timeout: 2 * MINUTES }, async () => {
    await sandbox.files.write('/home/user/kept', 'state')
    await sandbox.pause()
    const again = await e2b.Sandbox.connect(sandbox.sandboxId, here.options)
    expect(await again.files.read('/home/user/kept')).toBe('state')
    const [row] = (await here.server.call('GET', '/v1/sandboxes')).json.items
    const fork = await here.server.call('POST', `/v1/sandboxes/${row.id}/fork`, { body: {} })
    expect(fork.status).toBe(201)
    const run = await here.server.call('POST', `/v1/sandboxes/${fork.json.id}/exec`, {
      body: { command: 'cat /home/user/kept; uname -r' },
    })
    expect(run.json.stdout).toMatch(/^state\d.*cloud-amd64/s)
    await here.server.call('DELETE', `/v1/sandboxes/${fork.json.id}`)
  })

  test.runIf(process.getuid?.() === 0)(
    'has a root user, whose files survive a pause without memory',
    { timeout: 2 * MINUTES },
    async () => {
      const script =
        'sudo mkdir -p /app && sudo sh -c "id -u > /app/by; hostname > /app/host" && cat /app/by; id -un'
      expect((await sandbox.commands.run(script)).stdout).toBe('0\nuser\n')
      await sandbox.pause({ keepMemory: false })
      const id = sandbox.sandboxId.replace(/^sb/, 'sb_')
      const { json: row } = await here.server.call('GET', `/v1/sandboxes/${id}`)
      expect(row).toMatchObject({ state: 'paused', backend: 'microvm' })
      const again = await e2b.Sandbox.connect(sandbox.sandboxId, here.options)
      expect((await again.commands.run('cat /app/by; uname -r')).stdout).toMatch(/^0\n.*cloud-amd64/)
    },
  )
})
