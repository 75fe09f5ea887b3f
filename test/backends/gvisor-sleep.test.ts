import { execFileSync } from 'node:child_process'
import { chmodSync, existsSync, mkdtempSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import type { ContainerSandbox } from '../../src/backends/container-handle.ts'
import { gvisor } from '../../src/backends/gvisor/backend.ts'
import { canCheckpoint } from '../../src/backends/gvisor/runsc.ts'
import { testImages, whyNot } from '../conformance/engines.ts'
import { packageRoot, planOf } from '../conformance/world.ts'
import { FULL } from '../server/test-server.ts'
import { HOLDS_MEMORY, putToSleep, report, SLEEPERS } from './sleepers.ts'

/** A paused gVisor sandbox uses disk instead of memory, and continues where it stopped. */

const MINUTE = 60_000
const probePlan = () => planOf({ limits: { wallMs: 10_000 } })
const reason = whyNot('gvisor')
const agent = join(packageRoot(), 'dist', 'guest', 'ringfence-agent')
const base = mkdtempSync(join(tmpdir(), 'rf-sleep-'))
const backend = gvisor({ agent, probePlan, images: testImages(), stateDir: base })
const open = async (spec: Record<string, unknown> = {}): Promise<ContainerSandbox> =>
  (await backend.open(planOf({ backend: 'gvisor', waive: ['fs.protect'], ...spec }))) as ContainerSandbox
afterAll(() => rmSync(base, { recursive: true, force: true }))

/** The gVisor processes of this test, found by their state directory. */
const kernels = (): readonly string[] =>
  execFileSync('ps', ['-eo', 'args'], { encoding: 'utf8' })
    .split('\n')
    .filter((line) => line.includes(`--root=${base}`) || line.includes(`--root ${base}`))
const saved = (): readonly string[] => {
  const run = join(base, 'run')
  return readdirSync(run)
    .flatMap((name) => ['memory', 'memory-waking'].map((file) => join(run, name, file)))
    .filter((path) => existsSync(path))
}
const allocated = (path: string): number =>
  Number(execFileSync('du', ['-sB1', path], { encoding: 'utf8' }).split('\t')[0])
const sh = async (sandbox: ContainerSandbox, script: string): Promise<string> => {
  const { outcome, stdout, stderr } = await sandbox.exec({ argv: ['sh', '-c', script] })
  if (outcome.kind !== 'exited' || outcome.code !== 0)
    throw new Error(`${JSON.stringify(outcome)} ${Buffer.from(stderr).toString()}`)
  return Buffer.from(stdout).toString()
}

/** Starts a command that counts, and collects its output. */
async function counting(sandbox: ContainerSandbox) {
  let said = ''
  const script = 'n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done'
  const running = await sandbox.start(
    { argv: ['sh', '-c', script] },
    {
      output: (_, chunk) => {
        said += Buffer.from(chunk).toString()
      },
    },
  )
  return { running, numbers: () => said.trim().split('\n').map(Number) }
}

test.each([
  ['runsc version 0.0~20240729.0\nspec: 1.0.2-dev', true],
  ['runsc version release-20250820.0', true],
  ['runsc version 0.0~20221219.0', false],
  ['runsc version VERSION_MISSING', false],
  ['', false],
])('support for checkpoint and restore is read from the version: %s', (version, can) =>
  expect(canCheckpoint(version)).toBe(can),
)

/** Debian 12's build cannot; `npm run setup` installs the build of the backports. */
const cannot = (): boolean =>
  reason !== undefined ||
  process.getuid?.() !== 0 ||
  !canCheckpoint(execFileSync('runsc', ['--version'], { encoding: 'utf8' }))

describe.skipIf(cannot())('a paused gVisor sandbox', () => {
  test('leaves no process while it sleeps, and its commands continue after resume', {
    timeout: 2 * MINUTE,
  }, async () => {
    const sandbox = await open()
    const { running, numbers } = await counting(sandbox)
    await expect.poll(() => numbers().length, { timeout: MINUTE }).toBeGreaterThan(5)
    await sh(sandbox, 'echo kept > /tmp/note')
    for (let round = 0; round < 2; round++) {
      const before = numbers().length
      await sandbox.pause()
      expect(kernels()).toEqual([])
      expect(saved().length).toBe(1)
      await expect(sandbox.exec({ argv: ['true'] })).rejects.toThrow('paused')
      await sandbox.resume()
      expect(saved()).toEqual([])
      await expect.poll(() => numbers().length, { timeout: MINUTE }).toBeGreaterThan(before + 5)
      const seen = numbers()
      expect(seen).toEqual(seen.map((_, index) => index + 1))
      expect(await sh(sandbox, 'cat /tmp/note')).toBe('kept\n')
    }
    running.signal('SIGKILL')
    await running.result
    await sandbox.close()
    expect(kernels()).toEqual([])
  })

  test('stays in memory while a command holds a deleted file of the host open, and keeps that file', {
    timeout: MINUTE,
  }, async () => {
    const workspace = mkdtempSync(join(tmpdir(), 'rf-sleep-'))
    chmodSync(workspace, 0o777)
    const sandbox = await open({ workspace })
    const script = 'exec 5<>gone; echo kept >&5; rm gone; echo; read go; cat /proc/self/fd/5'
    let said = ''
    const output = (_: string, chunk: Uint8Array): void => {
      said += Buffer.from(chunk).toString()
    }
    const running = await sandbox.start({ argv: ['sh', '-c', script] }, { stdin: true, output })
    await expect.poll(() => said, { timeout: MINUTE }).toBe('\n')
    await sandbox.pause()
    expect(saved()).toEqual([])
    await sandbox.resume()
    await running.write(Buffer.from('\n'))
    expect((await running.result).outcome).toEqual({ kind: 'exited', code: 0 })
    expect(said).toBe('\nkept\n')
    await sandbox.close()
    rmSync(workspace, { recursive: true })
  })

  test('stays asleep if restoring fails, and can be resumed later', { timeout: MINUTE }, async () => {
    const workspace = mkdtempSync(join(tmpdir(), 'rf-sleep-'))
    chmodSync(workspace, 0o777)
    const file = join(workspace, 'data')
    writeFileSync(file, 'first\nsecond\n')
    const sandbox = await open({ workspace })
    let said = ''
    const output = (_: string, chunk: Uint8Array): void => {
      said += Buffer.from(chunk).toString()
    }
    const script = 'exec 5<data; read a <&5; echo $a; read go; read b <&5; echo $b'
    const running = await sandbox.start({ argv: ['sh', '-c', script] }, { stdin: true, output })
    await expect.poll(() => said, { timeout: MINUTE }).toBe('first\n')
    await sandbox.pause()
    renameSync(file, `${file}-away`)
    await expect(sandbox.resume()).rejects.toThrow(/restore failed/)
    expect(kernels()).toEqual([])
    expect(saved().length).toBe(1)
    renameSync(`${file}-away`, file)
    await sandbox.resume()
    await running.write(Buffer.from('\n'))
    await running.result
    expect(said).toBe('first\nsecond\n')
    await sandbox.close()
    rmSync(workspace, { recursive: true })
  })

  test('leaves no files or processes if it is closed while it pauses or resumes', {
    timeout: MINUTE,
  }, async () => {
    const pausing = await open()
    const pause = pausing.pause().catch(() => {})
    await pausing.close()
    await pause
    const waking = await open()
    await waking.pause()
    const wake = waking.resume().catch(() => {})
    await waking.close()
    await wake
    expect(saved()).toEqual([])
    expect(kernels()).toEqual([])
  })

  test.runIf(FULL)(
    'uses disk instead of memory, also with many sandboxes',
    { timeout: 20 * MINUTE },
    async () => {
      const said: string[] = []
      const figures = await putToSleep(async () => {
        const sandbox = await open()
        const at = said.push('') - 1
        const output = (_: string, chunk: Uint8Array): void => {
          said[at] += Buffer.from(chunk).toString()
        }
        await sandbox.start({ argv: HOLDS_MEMORY }, { output })
        await expect.poll(() => said[at], { timeout: MINUTE }).toContain('held')
        return sandbox
      })
      const disk = saved().reduce((sum, path) => sum + allocated(path), 0)
      report('gVisor sandboxes', figures, disk)
      expect(kernels()).toEqual([])
      expect(figures.asleep).toBeLessThan(figures.before + figures.awake)
      expect(disk / SLEEPERS).toBeGreaterThan(3_000_000)
      const last = figures.sandboxes.at(-1) as ContainerSandbox
      await last.resume()
      await expect.poll(() => said.at(-1), { timeout: MINUTE }).toMatch(/\n4000000\n/)
      for (const sandbox of figures.sandboxes) await sandbox.close()
      expect(saved()).toEqual([])
    },
  )

  test('leaves no files or processes when it is closed', { timeout: MINUTE }, async () => {
    const sandbox = await open()
    await sh(sandbox, 'true')
    await sandbox.pause()
    expect(saved().length).toBe(1)
    await sandbox.close()
    expect(saved()).toEqual([])
    expect(kernels()).toEqual([])
    expect(readdirSync(join(base, 'run', 'runsc'))).toEqual([])
  })
})
