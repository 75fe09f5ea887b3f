import { execFileSync, spawnSync } from 'node:child_process'
import { chownSync, mkdirSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Sandbox } from '../../src/index.ts'
import { cliWords } from '../cli/program.ts'
import { FULL, makeTestHost, type TestHost, text } from './persistent-sandbox.ts'

/** Workspaces on other file systems, of other owners, and large ones. */

let testHost: TestHost
beforeAll(() => {
  testHost = makeTestHost('places')
})
afterAll(() => testHost.drop())

const isRoot = process.getuid?.() === 0

/** Mounts in a separate mount namespace, so that no mount is left on the host. */
function runMounted(mounts: string): string {
  // In a script file: the policy judges only the command line, the sandbox limits the script.
  const work = 'echo written > f; mkdir d; mv f d/; cat d/f; mkdir .git || echo refused'
  const run = `echo '${work}' > "$W/work.sh"; ${cliWords()} run --workspace "$W" -- bash work.sh`
  const { stdout, stderr } = spawnSync(
    'unshare',
    ['-m', 'bash', '-c', `set -e; cd ${testHost.base}; ${mounts}\n cd "$W"; ${run}`],
    {
      encoding: 'utf8',
      env: {
        PATH: process.env.PATH,
        HOME: join(testHost.base, 'home'),
        RINGFENCE_HOME: join(testHost.base, 'state'),
      },
    },
  )
  return stdout + stderr
}

describe('a workspace on another file system', () => {
  test.runIf(isRoot).each([
    ['tmpfs', 'mkdir -p m; mount -t tmpfs m m; W=$PWD/m'],
    [
      'overlay',
      'mkdir -p t; mount -t tmpfs t t; mkdir -p t/lower t/upper t/work t/merged; echo old > t/lower/old; mount -t overlay o -o lowerdir=t/lower,upperdir=t/upper,workdir=t/work t/merged; W=$PWD/t/merged',
    ],
    ['a bind mount', 'mkdir -p b/from b/to; mount --bind b/from b/to; W=$PWD/b/to'],
    [
      'a bind mount of a directory inside itself',
      'mkdir -p i/in; mount --bind i i; mount --bind i/in i/in; W=$PWD/i',
    ],
  ])('can be written, with its protected names: %s', (_, mounts) => {
    const said = runMounted(mounts)
    expect(said).toContain('written\n')
    expect(said).toContain('refused')
  })
})

describe.runIf(isRoot)('root with a workspace of another user', () => {
  test('runs commands as that user, and new files belong to that user', async () => {
    const theirs = join(testHost.base, 'theirs')
    mkdirSync(join(theirs, 'sub'), { recursive: true })
    execFileSync('chmod', ['755', testHost.base])
    for (const path of [theirs, join(theirs, 'sub')]) chownSync(path, 54321, 54321)
    await using sandbox = await Sandbox.create({ workspace: theirs }, { ...testHost.options, cwd: theirs })
    await sandbox.exec('echo x > sub/mine')
    await sandbox.files.write(join(theirs, 'sub', 'streamed'), 'x')
    for (const name of ['mine', 'streamed']) expect(statSync(join(theirs, 'sub', name)).uid).toBe(54321)
    expect(text((await sandbox.exec(['id', '-u'])).stdout)).toBe('54321\n')
  })
})

describe.runIf(isRoot)('root without a workspace', () => {
  // The kernel counts inotify instances per user of the host.
  const TAKE = `import ctypes, time
libc = ctypes.CDLL(None)
taken = 0
while taken < 10000 and libc.inotify_init1(0) >= 0: taken += 1
print(taken, flush=True)
`
  test('runs each sandbox as a user of its own, so that none takes what the kernel gives to one user', async () => {
    const options = { ...testHost.options, cwd: testHost.base }
    await using greedy = await Sandbox.create({ preset: 'read-only', backend: 'bubblewrap' }, options)
    await using other = await Sandbox.create({ preset: 'read-only', backend: 'bubblewrap' }, options)
    expect(text((await greedy.exec(['id', '-u'])).stdout)).toBe('65534\n')
    const held = new AbortController()
    const first = await new Promise((resolve) => {
      const output = (_: unknown, chunk: Uint8Array) => resolve(Number(text(chunk)))
      greedy
        .exec(['python3', '-c', `${TAKE}time.sleep(60)`], { output, signal: held.signal })
        .then(resolve, resolve)
    })
    const second = Number(text((await other.exec(['python3', '-c', TAKE])).stdout))
    held.abort()
    expect(second).toBeGreaterThan(0)
    expect(second).toBe(first)
  })
})

test('a disk limit does not count open files of a user who may have few of them', { timeout: 60_000 }, () => {
  const work = join(testHost.base, 'many')
  mkdirSync(work)
  writeFileSync(join(work, 'many.sh'), 'for i in $(seq 2000); do echo x > f$i || exit 1; done; cat f1\n')
  const run = `${cliWords()} run --no-broker --disk 100 -- bash many.sh`
  const env = {
    PATH: process.env.PATH,
    HOME: join(testHost.base, 'home'),
    RINGFENCE_HOME: join(testHost.base, 'state'),
  }
  const { stdout, stderr } = spawnSync('prlimit', ['--nofile=1200:1200', 'bash', '-c', run], {
    encoding: 'utf8',
    cwd: work,
    env,
  })
  expect([stdout, stderr]).toEqual(['x\n', ''])
})

describe('a large tree', () => {
  test('with 5,000 files does not slow down the start', { timeout: 120_000 }, async () => {
    const large = join(testHost.base, 'large')
    for (let dir = 0; dir < 50; dir++) {
      mkdirSync(join(large, `package-${dir}`, 'src'), { recursive: true })
      for (let file = 0; file < 100; file++)
        writeFileSync(join(large, `package-${dir}`, 'src', `f${file}.ts`), 'x')
    }
    const start = async (workspace: string): Promise<number> => {
      const began = performance.now()
      const sandbox = await Sandbox.create({ workspace }, { ...testHost.options, cwd: workspace })
      const { stdout } = await sandbox.exec(['true'])
      const took = performance.now() - began
      expect(text(stdout)).toBe('')
      await sandbox.close()
      return took
    }
    const median = (times: number[]): number => times.sort((a, b) => a - b)[times.length >> 1] as number
    await start(testHost.workspace)
    const [empty, full]: [number[], number[]] = [[], []]
    // In turns, so that whatever else the machine does slows both.
    for (let round = 0; round < (FULL ? 31 : 3); round++) {
      empty.push(await start(testHost.workspace))
      full.push(await start(large))
    }
    if (FULL) expect(median(full)).toBeLessThan(median(empty) * 1.5 + 5)
  })
})
