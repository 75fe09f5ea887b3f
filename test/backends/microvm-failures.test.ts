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

/** What goes wrong around machines: their hypervisor, their snapshots, the disk under them, the files that come back. */

const MINUTES = 60_000
const run = promisify(execFile)
const reason = whyNoMachine()
if (reason && process.env.CI) throw new Error(`microvm: ${reason}`)

const said = async (sandbox: BackendSandbox, line: string): Promise<string> =>
  Buffer.from((await sandbox.exec({ argv: ['/bin/sh', '-c', line] })).stdout).toString()

describe.skipIf(reason !== undefined)('trouble with machines', () => {
  const backend = machines()
  const open = (spec: Record<string, unknown> = {}, from = backend): Promise<BackendSandbox> =>
    from.open(planOf({ backend: 'microvm', ...spec }))
  const made: string[] = []
  const place = (name: string): string => {
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

  test('an emulator that dies takes its sandbox along, and nothing else', { timeout: MINUTES }, async () => {
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

  describe('a template that is broken', () => {
    const state = place('state')
    const told: string[] = []
    // Its own directory for templates, on the images of all.
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
      '%s truncated: it is created again',
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

    test('of another machine’s state, it is dropped, and the sandbox starts from nothing', {
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

  describe.skipIf(process.getuid?.() !== 0)('a disk that is full', () => {
    const state = place('full')
    const told: string[] = []
    const full = machines({ stateDir: state, images: testImages(), onProgress: (text) => told.push(text) })
    beforeAll(async () => {
      await run('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'full', state])
      mkdirSync(join(state, 'images'))
      symlinkSync(join(testState(), 'images', 'microvm'), join(state, 'images', 'microvm'))
    })
    afterAll(() => run('umount', [state]))
    const left = (): string[] => readdirSync(join(state, 'run'))

    test('has no room for a template: the sandbox starts from nothing', { timeout: MINUTES }, async () => {
      const sandbox = await open({}, full)
      expect(await said(sandbox, 'echo fine')).toBe('fine\n')
      await sandbox.close()
      expect(told.join('\n')).toMatch(/no template: the disk under `.*` is full/)
      expect([left(), readdirSync(join(state, 'microvm', 'templates'))]).toEqual([[], []])
    })

    test('fills up under a guest: the guest gets an error and goes on', {
      timeout: 2 * MINUTES,
    }, async () => {
      const small = place('small')
      await run('mount', ['-t', 'tmpfs', '-o', 'size=24m', 'small', small])
      try {
        mkdirSync(join(small, 'images'))
        symlinkSync(join(testState(), 'images', 'microvm'), join(small, 'images', 'microvm'))
        const sandbox = await open(
          { workspace: place('work') },
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

    test('has no room for its files: a clear error, and nothing is left', { timeout: MINUTES }, async () => {
      const before = emulators().length
      await expect(open({ workspace: place('work') }, full)).rejects.toMatchObject({
        code: 'resource-exhausted',
        message: expect.stringMatching(/the disk under `.*` is full/),
        hint: expect.stringMatching(/free some space/),
      })
      expect(left()).toEqual([])
      expect(emulators()).toHaveLength(before)
    })
  })

  test('names that are no text stay in the guest, all others come back', { timeout: MINUTES }, async () => {
    const workspace = place('names')
    const sandbox = await open({ workspace })
    const line = `printf x > "$(printf 'b\\377d')"; mkdir "$(printf 'd\\200')"; ln -s "$(printf '\\376')" way; echo y > good`
    const { violations } = await sandbox.exec({ argv: ['/bin/sh', '-c', line] })
    expect(readdirSync(workspace)).toEqual(['good'])
    expect(violations.map(({ guarantee }) => guarantee)).toEqual(['fs.write', 'fs.write', 'fs.write'])
    expect(await said(sandbox, 'echo z > later; ls | wc -l')).toBe('5\n')
    await sandbox.close()
    expect(readdirSync(workspace).sort()).toEqual(['good', 'later'])
  })

  describe('the tests would notice', () => {
    // Random numbers of two clones differ also by what their kernels draw from the processor and from the instant, or they
    // do not: it depends on how long the template had run. So the machine itself refuses to be nobody of its own.
    test.each<[string, (fields: readonly string[]) => readonly string[]]>([
      ['clones that were given no randomness of their own', (fields) => fields.slice(2)],
      [
        'clones that were given too little of it',
        ([name, seed, ...rest]) => [name as string, `${seed}`.slice(0, 40), ...rest],
      ],
    ])('%s', { timeout: MINUTES }, async (_, identity) => {
      const careless = machines({ sabotage: { identity } })
      await expect(open({}, careless)).rejects.toMatchObject({ code: 'launch-failed' })
      await careless.close()
    })

    test('a copy that brings in what is denied', { timeout: MINUTES }, async () => {
      const inputs = place('masked')
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

  test('large inputs come as an image, judged like any copy', { timeout: MINUTES }, async () => {
    const inputs = place('inputs')
    mkdirSync(join(inputs, 'sub', 'deep'), { recursive: true })
    writeFileSync(join(inputs, 'sub', 'large'), Buffer.alloc(65 * 1024 * 1024, 'x'))
    writeFileSync(join(inputs, 'sub', 'deep', 'small'), 'small\n', { mode: 0o755 })
    writeFileSync(join(inputs, '.env'), 'KEY=secret')
    symlinkSync('/etc/shadow', join(inputs, 'way'))
    const workspace = place('beside')
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

  test('the host never looks into a disk that a guest wrote to', { timeout: MINUTES }, async () => {
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
    const sandbox = await open({ workspace: place('disk') })
    await said(sandbox, 'echo made > file')
    // Changed, taken back, and still: nothing is mounted, and nobody but the emulator has it open.
    expect([mounts(), loops()]).toEqual(before)
    expect(ours()).toEqual([])
    await sandbox.close()
    expect([mounts(), loops()]).toEqual(before)
  })
})
