import { existsSync, readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Sandbox } from '../../src/supervisor/sandbox.ts'
import { cannotTry, type RootHost, rootHost, sh, text } from '../root/root-host.ts'
import { FULL } from '../server/test-server.ts'
import { emulators } from './microvm-parts.ts'
import { HOLDS_MEMORY, putToSleep, report } from './sleepers.ts'

/** A paused virtual machine uses disk instead of memory, and continues where it stopped. */

let host: RootHost
beforeAll(async () => {
  if (!cannotTry('microvm')) host = await rootHost('microvm')
}, 60_000)
afterAll(() => host?.close(), 60_000)

const savedFiles = (): readonly string[] => {
  const run = join(host.base, 'state', 'run')
  return readdirSync(run)
    .flatMap((name) => ['memory', 'memory-waking'].map((file) => join(run, name, file)))
    .filter((path) => existsSync(path) && statSync(path).size > 0)
}

/** Starts a command that counts, and collects its output. */
async function counting(sandbox: Sandbox) {
  let said = ''
  const script = 'n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done'
  const running = await sandbox.spawn(['sh', '-c', script], {
    output: (_, chunk) => {
      said += text(chunk)
    },
  })
  return { running, numbers: () => said.trim().split('\n').map(Number) }
}

const boundTo = (sandbox: Sandbox) => ({
  pause: async () => sandbox.pause?.(),
  resume: async () => sandbox.resume?.(),
  close: () => sandbox.close(),
})

describe.skipIf(cannotTry('microvm'))('a paused virtual machine', () => {
  test.each([{ root: 'read-only' }, { root: 'writable' }] as const)(
    'leaves no process while it sleeps, and its commands continue after resume: %o',
    { timeout: 120_000 },
    async (spec) => {
      await using sandbox = await host.open(spec)
      const { running, numbers } = await counting(sandbox)
      await expect.poll(() => numbers().length, { timeout: 20_000 }).toBeGreaterThan(5)
      const uuid = await sh(sandbox, 'cat /proc/sys/kernel/random/uuid')
      for (let round = 0; round < 2; round++) {
        const before = numbers().length
        expect(emulators().length).toBe(1)
        await sandbox.pause?.()
        expect(emulators()).toEqual([])
        expect(savedFiles().length).toBe(1)
        expect(sandbox.usage()).toMatchObject({ memoryBytes: 0 })
        await expect(sandbox.exec(['true'])).rejects.toThrow('paused')
        await sandbox.resume?.()
        expect(savedFiles()).toEqual([])
        await expect.poll(() => numbers().length, { timeout: 20_000 }).toBeGreaterThan(before + 5)
        const seen = numbers()
        expect(seen).toEqual(seen.map((_, index) => index + 1))
      }
      expect(await sh(sandbox, 'cat /proc/sys/kernel/random/uuid')).not.toBe(uuid)
      running.signal('SIGKILL')
      await running.result
    },
  )

  test.runIf(FULL)(
    'uses disk instead of memory, also with many machines',
    { timeout: 40 * 60_000 },
    async () => {
      const figures = await putToSleep(async () => {
        const sandbox = await host.open({ root: 'read-only', limits: { memoryMb: 256 } })
        let said = ''
        await sandbox.spawn(HOLDS_MEMORY, {
          output: (_, chunk) => {
            said += text(chunk)
          },
        })
        await expect.poll(() => said, { timeout: 60_000 }).toContain('held')
        return { ...boundTo(sandbox), said: () => said }
      })
      const disk = savedFiles().reduce((sum, path) => sum + statSync(path).blocks * 512, 0)
      report('machines', figures, disk)
      expect(emulators()).toEqual([])
      expect(figures.asleep).toBeLessThan(figures.before + figures.awake)
      await figures.sandboxes.at(-1)?.resume()
      await expect.poll(() => figures.sandboxes.at(-1)?.said(), { timeout: 60_000 }).toMatch(/\n4000000\n/)
      for (const sandbox of figures.sandboxes) await sandbox.close()
      expect(savedFiles()).toEqual([])
    },
  )

  test('leaves no files or processes when it is closed', { timeout: 60_000 }, async () => {
    const sandbox = await host.open()
    await sh(sandbox, 'echo 1')
    await sandbox.pause?.()
    expect(savedFiles().length).toBe(1)
    await sandbox.close()
    expect(savedFiles()).toEqual([])
    expect(emulators()).toEqual([])
  })
})
