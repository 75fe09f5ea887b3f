import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { Sandbox } from '../../src/index.ts'

/** The `Sandbox` API: text, exit codes, iteration, aborts, names. */

const base = mkdtempSync(join(tmpdir(), 'rf-library-'))
const workspace = mkdtempSync(join(base, 'work-'))
const options = { env: { ...process.env, RINGFENCE_HOME: join(base, 'state') }, cwd: workspace }
afterAll(() => rmSync(base, { recursive: true, force: true }))

describe('the result of a command', () => {
  test('has text, bytes, and an exit code as in a shell', async () => {
    await using sandbox = await Sandbox.create({ workspace }, options)
    const { exitCode, stdout, stderr, stdoutBytes } = await sandbox.exec('echo “hi”; echo no >&2; exit 3')
    expect([exitCode, stdout, stderr]).toEqual([3, '“hi”\n', 'no\n'])
    expect(stdoutBytes).toEqual(Buffer.from('“hi”\n'))
    expect((await sandbox.exec('kill -9 $$')).exitCode).toBe(137)
    expect((await sandbox.exec('sleep 9', { limits: { wallMs: 100 } })).exitCode).toBe(124)
  })
})

describe('aborting a command', () => {
  test('rejects with AbortError, and the sandbox continues', async () => {
    await using sandbox = await Sandbox.create({ workspace }, options)
    const stop = new AbortController()
    const running = sandbox.exec('sleep 60', { signal: stop.signal })
    setTimeout(() => stop.abort(), 100)
    await expect(running).rejects.toMatchObject({ name: 'AbortError' })
    await expect(sandbox.exec('true', { signal: stop.signal })).rejects.toMatchObject({ name: 'AbortError' })
    expect((await sandbox.exec('echo on')).stdout).toBe('on\n')
  })
  test('with a reason rejects with that reason', async () => {
    await using sandbox = await Sandbox.create({ workspace }, options)
    const reason = new Error('changed my mind')
    const running = await sandbox.spawn('sleep 60', { signal: AbortSignal.timeout(60_000) })
    running.signal('SIGKILL')
    expect((await running.result).exitCode).toBe(137)
    await expect(sandbox.exec('true', { signal: AbortSignal.abort(reason) })).rejects.toBe(reason)
  })
})

describe('a running command', () => {
  test('is an iterator over its output', async () => {
    await using sandbox = await Sandbox.create({ workspace }, options)
    const running = await sandbox.spawn('cat; echo done >&2', { stdin: true })
    await running.write('one\n')
    running.endInput()
    const seen = { stdout: '', stderr: '' }
    for await (const { stream, data } of running) seen[stream] += data
    expect(seen).toEqual({ stdout: 'one\n', stderr: 'done\n' })
    expect(await running.result).toMatchObject({ exitCode: 0, stdout: 'one\n' })
  })
  test('whose output is not read still ends, with bounded memory', async () => {
    await using sandbox = await Sandbox.create({ workspace }, options)
    const quiet = await sandbox.spawn('head -c 300000 /dev/zero')
    expect((await quiet.result).exitCode).toBe(0)
    const flood = await sandbox.spawn('yes', { limits: { outputBytes: 100_000 } })
    expect((await flood.result).outcome).toEqual({ kind: 'stopped', limit: 'output' })
  })
})

describe('open sandboxes are found', () => {
  test('by id', async () => {
    const sandbox = await Sandbox.create({ workspace }, options)
    expect(Sandbox.get(sandbox.id)).toBe(sandbox)
    await sandbox.close()
    expect(() => Sandbox.get(sandbox.id)).toThrow('no open sandbox')
  })
  test('by name: concurrent callers get the same sandbox, and a closed one is not returned', async () => {
    const [one, two] = await Promise.all([
      Sandbox.getOrCreate('tests', { workspace }, options),
      Sandbox.getOrCreate('tests', { workspace }, options),
    ])
    expect(one).toBe(two)
    const stricter = Sandbox.getOrCreate('tests', { workspace, preset: 'read-only' }, options)
    await expect(stricter).rejects.toMatchObject({ code: 'conflict' })
    await one.close()
    await using next = await Sandbox.getOrCreate('tests', { workspace }, options)
    expect(next.id).not.toBe(one.id)
  })
})

test('writeMany writes several files', async () => {
  await using sandbox = await Sandbox.create({ workspace }, options)
  await sandbox.files.writeMany([
    { path: join(workspace, 'a'), data: 'one' },
    { path: join(workspace, 'b'), data: Buffer.from('two') },
  ])
  expect(readFileSync(join(workspace, 'a'), 'utf8') + readFileSync(join(workspace, 'b'), 'utf8')).toBe(
    'onetwo',
  )
})

test('hints name options of the library, not CLI flags', async () => {
  const missing = Sandbox.create({ workspace, backend: 'bubblewrap', limits: { fuel: 1 } }, options)
  const error = await missing.catch((problem: unknown) => problem as { hint: string })
  expect((error as { hint: string }).hint).toContain("waive: ['limit.fuel']")
  expect((error as { hint: string }).hint).not.toContain('--')
})

describe('the timeout of a sandbox', () => {
  test('closes the sandbox and ends its commands', async () => {
    const sandbox = await Sandbox.create({ workspace }, { ...options, timeoutMs: 300 })
    const running = await sandbox.spawn('sleep 60')
    await sandbox.ended
    expect(() => Sandbox.get(sandbox.id)).toThrow('no open sandbox')
    expect((await running.result.catch(() => ({ exitCode: 137 }))).exitCode).toBe(137)
  })
  test('is never shortened by extendTimeout, and stops while the sandbox is paused', async () => {
    await using sandbox = await Sandbox.create({ workspace }, { ...options, timeoutMs: 600_000 })
    sandbox.extendTimeout(9_000_000)
    expect(sandbox.timeoutLeftMs).toBeGreaterThan(8_000_000)
    sandbox.extendTimeout(1)
    expect(sandbox.timeoutLeftMs).toBeGreaterThan(8_000_000)
    await sandbox.pause()
    const held = sandbox.timeoutLeftMs
    await new Promise((resolve) => setTimeout(resolve, 20))
    expect(sandbox.timeoutLeftMs).toBe(held)
    await sandbox.resume()
    expect(sandbox.timeoutLeftMs).toBeLessThanOrEqual(held as number)
    expect((await sandbox.exec('echo on')).stdout).toBe('on\n')
  })
  test('is absent by default, and an invalid value is refused before the start', async () => {
    await using sandbox = await Sandbox.create({ workspace }, options)
    sandbox.extendTimeout(1)
    expect(sandbox.timeoutLeftMs).toBeUndefined()
    for (const timeoutMs of [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY]) {
      await expect(Sandbox.create({ workspace }, { ...options, timeoutMs })).rejects.toMatchObject({
        code: 'invalid-input',
      })
      expect(() => sandbox.extendTimeout(timeoutMs)).toThrow('positive whole number')
    }
  })
})
