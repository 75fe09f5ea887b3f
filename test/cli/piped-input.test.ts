import { spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { machineImages, whyNoMachine } from '../backends/microvm-parts.ts'
import { skipped, startDocker, testImages, testState, whyNot } from '../conformance/engines.ts'
import { packageRoot } from '../conformance/world.ts'
import { FULL } from '../server/test-server.ts'

/** `ringfence run` in the middle of a pipeline, on every backend. */

const PROGRAM = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
const base = mkdtempSync(join(tmpdir(), 'rf-piped-'))
const cwd = join(base, 'work')
mkdirSync(cwd)
afterAll(() => rmSync(base, { recursive: true, force: true }))

type Env = Readonly<Record<string, string>>
const WAIVED: Readonly<Record<string, readonly string[]>> = { gvisor: ['--waive', 'fs.protect'] }

const started = (backend: string, command: readonly string[], env: Env) =>
  spawn(
    process.execPath,
    [PROGRAM, 'run', '--backend', backend, ...(WAIVED[backend] ?? []), '--', ...command],
    { cwd, env: { PATH: process.env.PATH, HOME: join(base, 'home'), RINGFENCE_HOME: testState(), ...env } },
  )

async function piped(backend: string, input: Buffer | string, command: readonly string[], env: Env = {}) {
  const child = started(backend, command, env)
  const said: Buffer[] = []
  let errors = ''
  child.stdout.on('data', (chunk: Buffer) => said.push(chunk))
  child.stderr.on('data', (chunk) => {
    errors += chunk
  })
  // A program that reads nothing closes its input.
  child.stdin.on('error', () => {})
  child.stdin.end(input)
  const code = await new Promise((resolve) => child.once('close', resolve))
  return { code, said: Buffer.concat(said), errors }
}

async function passesInput(backend: string, env: Env = {}): Promise<void> {
  const short = await piped(backend, 'hi\n', ['cat'], env)
  expect([short.code, String(short.said)], short.errors).toEqual([0, 'hi\n'])
  const large = Buffer.alloc(3_000_000, 'abcdefg\n')
  const copy = await piped(backend, large, ['cat'], env)
  expect([copy.code, copy.said.equals(large), copy.errors]).toEqual([0, true, ''])
  // More input than the program reads, and a program that reads none: both still end.
  expect(String((await piped(backend, large, ['head', '-c', '3'], env)).said)).toBe('abc')
  expect((await piped(backend, large, ['true'], env)).code).toBe(0)
}

test('bubblewrap passes input on', { timeout: 60_000 }, () => passesInput('bubblewrap'))

describe.skipIf(whyNot('gvisor') !== undefined)('gvisor', () => {
  test('passes input on', { timeout: 120_000 }, async () => {
    await testImages().default()
    await passesInput('gvisor')
  })

  test('slows down a command with a slow reader instead of buffering its output', {
    timeout: 120_000,
  }, async () => {
    await testImages().default()
    const script = 'head -c 64000000 /dev/zero; echo written >&2'
    const child = started('gvisor', ['sh', '-c', script], {})
    child.stdin.end()
    let errors = ''
    child.stderr.on('data', (chunk) => {
      errors += chunk
    })
    await new Promise((resolve) => child.stdout.once('readable', resolve))
    // Nothing is read: otherwise ringfence would buffer the output of the command.
    await new Promise((resolve) => setTimeout(resolve, 3000))
    expect(errors).toBe('')
    let bytes = 0
    child.stdout.on('data', (chunk: Buffer) => {
      bytes += chunk.length
    })
    expect(await new Promise((resolve) => child.once('close', resolve))).toBe(0)
    expect([bytes, errors]).toEqual([64_000_000, 'written\n'])
  })
})

describe.skipIf(!FULL || skipped('docker'))('docker', () => {
  test('passes input on', { timeout: 120_000 }, async () => {
    await testImages().default()
    const engine = await startDocker()
    try {
      await passesInput('docker', { RINGFENCE_DOCKER_SOCKET: engine.socket })
    } finally {
      await engine.close()
    }
  })
})

describe.skipIf(!FULL || whyNoMachine() !== undefined)('microvm', () => {
  test('passes input on', { timeout: 600_000 }, async () => {
    await machineImages()
    await passesInput('microvm')
  })
})
