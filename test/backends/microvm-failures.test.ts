import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { BackendSandbox } from '../../src/backends/backend.ts'
import { testImages, testState } from '../conformance/engines.ts'
import { planOf } from '../conformance/world.ts'
import { emulators, machineImages, machines, whyNoMachine } from './microvm-parts.ts'

/** Failures of the hypervisor, of templates, of the disk, and of files that are copied back. */

const MINUTES = 60_000
const run = promisify(execFile)
const reason = whyNoMachine()
if (reason && process.env.CI) throw new Error(`microvm: ${reason}`)

const said = async (sandbox: BackendSandbox, line: string): Promise<string> =>
  Buffer.from((await sandbox.exec({ argv: ['/bin/sh', '-c', line] })).stdout).toString()

describe.skipIf(reason !== undefined)('microvm failures', () => {
  const backend = machines()
  const open = (spec: Record<string, unknown> = {}, from = backend): Promise<BackendSandbox> =>
    from.open(planOf({ backend: 'microvm', ...spec }))
  const made: string[] = []
  const tempDir = (name: string): string => {
    const dir = mkdtempSync(join(tmpdir(), `rf-microvm-${name}-`))
    made.push(dir)
    return dir
  }

  beforeAll(async () => {
    await machineImages()
    await (await open()).close()
  }, 5 * MINUTES)
  afterAll(async () => {
    await backend.close()
    for (const dir of made) rmSync(dir, { recursive: true, force: true })
  })

  test('killing an emulator ends only its own sandbox', { timeout: MINUTES }, async () => {
    const sandbox = await open()
    const running = await sandbox.start({ argv: ['sleep', '60'] })
    const other = await open()
    process.kill(emulators()[0] ?? 0, 'SIGKILL')
    expect(await sandbox.ended).toMatch(/ended|broke/)
    await expect(running.result).rejects.toThrow(/the sandbox is gone/)
    await expect(sandbox.exec({ argv: ['true'] })).rejects.toMatchObject({ code: 'wrong-state' })
    await sandbox.close()
    expect(await said(other, 'echo fine')).toBe('fine\n')
    await other.close()
  })

  describe('a damaged template', () => {
    const state = tempDir('state')
    const told: string[] = []
    // Its own directory for templates, with the shared images.
    const own = machines({ stateDir: state, images: testImages(), onProgress: (text) => told.push(text) })
    const templates = (): string[] => readdirSync(join(state, 'microvm', 'templates'))
    const partOf = (name: string): string =>
      join(state, 'microvm', 'templates', templates()[0] as string, name)
    beforeAll(async () => {
      mkdirSync(join(state, 'images'), { recursive: true })
      await run('cp', ['-rl', join(testState(), 'images', 'microvm'), join(state, 'images', 'microvm')])
      await (await open({}, own)).close()
    }, 2 * MINUTES)

    test.each(['state', 'memory'])(
      'is created again if its %s is truncated',
      { timeout: 2 * MINUTES },
      async (part) => {
        const before = templates()
        chmodSync(partOf(part), 0o600)
        truncateSync(partOf(part), 1000)
        const sandbox = await open({}, own)
        expect(await said(sandbox, 'echo fine')).toBe('fine\n')
        await sandbox.close()
        expect(templates()).toEqual(before)
      },
    )

    test('is deleted if its state cannot be loaded, and the sandbox boots without it', {
      timeout: 2 * MINUTES,
    }, async () => {
      chmodSync(partOf('state'), 0o600)
      writeFileSync(partOf('state'), 'no state at all')
      const record = JSON.parse(readFileSync(partOf('template.json'), 'utf8'))
      record.state = createHash('sha256').update('no state at all').digest('hex')
      writeFileSync(partOf('template.json'), JSON.stringify(record))
      const sandbox = await open({}, own)
      expect(await said(sandbox, 'echo fine')).toBe('fine\n')
      await sandbox.close()
      expect(told.join('\n')).toMatch(/the template cannot be used/)
      expect(templates()).toEqual([])
    })
  })

  describe.skipIf(process.getuid?.() !== 0)('a full disk', () => {
    const state = tempDir('full')
    const told: string[] = []
    const full = machines({ stateDir: state, images: testImages(), onProgress: (text) => told.push(text) })
    beforeAll(async () => {
      await run('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'full', state])
      mkdirSync(join(state, 'images'))
      symlinkSync(join(testState(), 'images', 'microvm'), join(state, 'images', 'microvm'))
    })
    afterAll(() => run('umount', [state]))
    const left = (): string[] => readdirSync(join(state, 'run'))

    test('without room for a template: the sandbox boots without one', { timeout: MINUTES }, async () => {
      const sandbox = await open({}, full)
      expect(await said(sandbox, 'echo fine')).toBe('fine\n')
      await sandbox.close()
      expect(told.join('\n')).toMatch(/no template: the disk under `.*` is full/)
      expect([left(), readdirSync(join(state, 'microvm', 'templates'))]).toEqual([[], []])
    })

    test('under a running guest: the guest gets an I/O error and continues', {
      timeout: 2 * MINUTES,
    }, async () => {
      const small = tempDir('small')
      await run('mount', ['-t', 'tmpfs', '-o', 'size=24m', 'small', small])
      try {
        mkdirSync(join(small, 'images'))
        symlinkSync(join(testState(), 'images', 'microvm'), join(small, 'images', 'microvm'))
        const sandbox = await open(
          { workspace: tempDir('work') },
          machines({ stateDir: small, images: testImages() }),
        )
        const line = 'dd if=/dev/zero of=big bs=1M count=60 conv=fsync 2>/dev/null; echo $?; rm -f big'
        expect(await said(sandbox, line)).toBe('1\n')
        expect(await said(sandbox, 'echo fine')).toBe('fine\n')
        await sandbox.close()
      } finally {
        await run('umount', [small])
      }
    })

    test('without room for the sandbox files: a clear error, and no files or processes are left', {
      timeout: MINUTES,
    }, async () => {
      const before = emulators().length
      await expect(open({ workspace: tempDir('work') }, full)).rejects.toMatchObject({
        code: 'resource-exhausted',
        message: expect.stringMatching(/the disk under `.*` is full/),
        hint: expect.stringMatching(/free some space/),
      })
      expect(left()).toEqual([])
      expect(emulators()).toHaveLength(before)
    })
  })

  test('file names that are not UTF-8 stay in the guest; all others are copied back', {
    timeout: MINUTES,
  }, async () => {
    const workspace = tempDir('names')
    const sandbox = await open({ workspace })
    const line = `printf x > "$(printf 'b\\377d')"; mkdir "$(printf 'd\\200')"; ln -s "$(printf '\\376')" way; echo y > good`
    const { violations } = await sandbox.exec({ argv: ['/bin/sh', '-c', line] })
    expect(readdirSync(workspace)).toEqual(['good'])
    expect(violations.map(({ guarantee }) => guarantee)).toEqual(['fs.write', 'fs.write', 'fs.write'])
    expect(await said(sandbox, 'echo z > later; ls | wc -l')).toBe('5\n')
    await sandbox.close()
    expect(readdirSync(workspace).sort()).toEqual(['good', 'later'])
  })

  describe('the tests detect a sabotaged backend', () => {
    // Two clones without a seed may still differ, by what their kernels draw from the processor and the clock: that depends
    // on how long the template ran. So the guest itself refuses to start without an identity of its own.
    test.each<[string, (fields: readonly string[]) => readonly string[]]>([
      ['that gives clones no random seed', (fields) => fields.slice(2)],
      [
        'that gives clones a short random seed',
        ([name, seed, ...rest]) => [name as string, `${seed}`.slice(0, 40), ...rest],
      ],
    ])('%s', { timeout: MINUTES }, async (_, identity) => {
      const careless = machines({ sabotage: { identity } })
      await expect(open({}, careless)).rejects.toMatchObject({ code: 'launch-failed' })
      await careless.close()
    })

    test('that copies denied files into the guest', { timeout: MINUTES }, async () => {
      const inputs = tempDir('masked')
      writeFileSync(join(inputs, '.env'), 'KEY=secret')
      const spec = { read: [inputs], deny: [join(inputs, '.env')] }
      const careless = machines({ sabotage: { copied: (plan) => ({ ...plan, masks: [] }) } })
      const seen = []
      for (const from of [backend, careless]) {
        const sandbox = await open(spec, from)
        seen.push(await said(sandbox, `cat ${inputs}/.env 2>&1`))
        await sandbox.close()
      }
      expect(seen).toEqual([expect.stringMatching(/No such file/), 'KEY=secret'])
    })
  })

  test('large inputs are mounted read-only as an image, without denied files', {
    timeout: MINUTES,
  }, async () => {
    const inputs = tempDir('inputs')
    mkdirSync(join(inputs, 'sub', 'deep'), { recursive: true })
    writeFileSync(join(inputs, 'sub', 'large'), Buffer.alloc(65 * 1024 * 1024, 'x'))
    writeFileSync(join(inputs, 'sub', 'deep', 'small'), 'small\n', { mode: 0o755 })
    writeFileSync(join(inputs, '.env'), 'KEY=secret')
    symlinkSync('/etc/shadow', join(inputs, 'way'))
    const workspace = tempDir('beside')
    writeFileSync(join(workspace, 'mine'), 'mine\n')
    const sandbox = await open({ workspace, read: [inputs], deny: [join(inputs, '.env')] })
    expect(
      await said(
        sandbox,
        `cd ${inputs}; wc -c < sub/large; cat sub/deep/small; test -x sub/deep/small && ls -A`,
      ),
    ).toBe(`${65 * 1024 * 1024}\nsmall\nsub\nway\n`)
    expect(await said(sandbox, `grep ' ${inputs} ' /proc/self/mountinfo | grep -c ' ro,.* erofs '`)).toBe(
      '1\n',
    )
    expect(await said(sandbox, `cat ${inputs}/way 2>&1; (echo x > ${inputs}/new) 2>&1; cat mine`)).toMatch(
      /No such file.*(Read-only|denied).*mine/s,
    )
    await sandbox.close()
    expect(readdirSync(inputs).sort()).toEqual(['.env', 'sub', 'way'])
  })

  test('the host neither mounts nor opens a disk that a guest wrote to', { timeout: MINUTES }, async () => {
    const mounts = (): string => readFileSync('/proc/self/mountinfo', 'utf8')
    const loops = (): string[] => readdirSync('/sys/block').filter((name) => name.startsWith('loop'))
    const ours = (): string[] =>
      readdirSync('/proc/self/fd').flatMap((fd) => {
        try {
          return [readlinkSync(`/proc/self/fd/${fd}`)].filter((path) => /machine-.*\/disk/.test(path))
        } catch {
          return []
        }
      })
    const before = [mounts(), loops()]
    const sandbox = await open({ workspace: tempDir('disk') })
    await said(sandbox, 'echo made > file')
    // After the changes were copied back: nothing is mounted, and only the emulator has the disk open.
    expect([mounts(), loops()]).toEqual(before)
    expect(ours()).toEqual([])
    await sandbox.close()
    expect([mounts(), loops()]).toEqual(before)
  })
})
