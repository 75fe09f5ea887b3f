import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { bubblewrap } from '../../src/backends/bubblewrap/backend.ts'
import { openshell } from '../../src/backends/openshell/backend.ts'
import {
  bytesOf,
  decode,
  encode,
  mapOf,
  messageOf,
  numberOf,
  textOf,
} from '../../src/backends/openshell/protobuf.ts'
import { SandboxRegistry } from '../../src/backends/registry.ts'
import { type ComposeOptions, Sandbox } from '../../src/index.ts'
import { text } from '../backends/persistent-sandbox.ts'
import { packageRoot, planOf } from '../conformance/world.ts'
import { type StandIn, type StandInOptions, standIn } from './gateway.ts'

let dir: string
let gateway: StandIn

const wall = () =>
  bubblewrap({
    agent: join(packageRoot(), 'dist', 'guest', 'ringfence-agent'),
    probePlan: () => planOf({ limits: { wallMs: 10_000 } }),
  })
const open = () => wall().open(planOf({}))

const composeFor = (url: string, more: Record<string, string> = {}): ComposeOptions => ({
  env: {
    PATH: process.env.PATH,
    HOME: dir,
    RINGFENCE_HOME: join(dir, 'state'),
    RINGFENCE_OPENSHELL_URL: url,
    RINGFENCE_OPENSHELL_TOKEN: 'token-of-the-gateway',
    ...more,
  },
  cwd: dir,
})
const spec = { backend: 'openshell', waive: ['kernel.filtered'] } as const

beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), 'rf-openshell-'))
  gateway = await standIn({ open, token: 'token-of-the-gateway' })
})

afterAll(async () => {
  await gateway.close()
  rmSync(dir, { recursive: true, force: true })
})

describe('OpenShell, with a fake gateway', () => {
  test('supports commands, input, signals and limits', async () => {
    await using sandbox = await Sandbox.create(spec, composeFor(gateway.url))
    const said = await sandbox.exec(['/bin/sh', '-c', 'printf "a\\377b"; echo err >&2; exit 3'])
    expect([...said.stdoutBytes]).toEqual([97, 255, 98])
    expect(text(said.stderr)).toBe('err\n')
    expect(said.outcome).toEqual({ kind: 'exited', code: 3 })
    expect(text((await sandbox.exec(['cat'], { stdin: Buffer.from('over there') })).stdout)).toBe(
      'over there',
    )
    expect(text((await sandbox.exec(['env'], { env: { SHOWN: 'yes' } })).stdout)).toContain('SHOWN=yes')
    expect((await sandbox.exec(['no-such-program'])).outcome).toEqual({ kind: 'exited', code: 127 })
    const late = await sandbox.exec(['sleep', '60'], { limits: { wallMs: 300 } })
    expect(late.outcome).toEqual({ kind: 'stopped', limit: 'wall' })
    const left = await sandbox.exec(['pgrep', '-c', 'sleep'])
    expect(text(left.stdout).trim()).toBe('0')
  }, 30_000)

  test('supports files, through its shell', async () => {
    await using sandbox = await Sandbox.create(spec, composeFor(gateway.url))
    const { files } = sandbox
    await files.write("/tmp/d/it's", 'one two three')
    expect(text(await files.read("/tmp/d/it's", { offset: 4, length: 3 }))).toBe('two')
    expect(await files.list('/tmp/d')).toEqual(["it's"])
    expect(await files.stat("/tmp/d/it's")).toMatchObject({ kind: 'file', size: 13, name: "it's" })
    await files.makeDir('/tmp/e')
    await expect(files.makeDir('/tmp/e')).rejects.toMatchObject({ code: 'file-exists' })
    const packed: Uint8Array[] = []
    for await (const chunk of files.pack('/tmp/d')) packed.push(chunk)
    await files.unpack('/tmp/e', packed)
    await files.move("/tmp/e/it's", '/tmp/e/moved')
    expect(text(await files.read('/tmp/e/moved'))).toBe('one two three')
    await files.remove('/tmp/e')
    await expect(files.stat('/tmp/e')).rejects.toMatchObject({ code: 'file-not-found' })
    await expect(files.read('/tmp/d')).rejects.toMatchObject({ code: 'invalid-input' })
  })

  test('copies read grants to the sandbox, and refuses a writable workspace', async () => {
    const workspace = join(dir, 'workspace')
    mkdirSync(workspace)
    writeFileSync(join(workspace, 'shown'), 'seen')
    await using sandbox = await Sandbox.create({ ...spec, read: [workspace] }, composeFor(gateway.url))
    expect(text(await sandbox.files.read(join(workspace, 'shown')))).toBe('seen')
    await expect(Sandbox.create({ ...spec, workspace }, composeFor(gateway.url))).rejects.toMatchObject({
      code: 'unsupported',
    })
  })

  test('sends the token with every call, and leaves no sandbox', async () => {
    expect(gateway.living()).toBe(0)
    expect(new Set(gateway.calls.map(({ token }) => token))).toEqual(new Set(['Bearer token-of-the-gateway']))
  })

  const failing: readonly (readonly [string, Partial<StandInOptions>, RegExp])[] = [
    ['another version', { version: '0.9.0' }, /version/],
    ['an unknown token', { token: 'another' }, /refused/],
    ['garbage', { garbage: Buffer.from('00000000030aff01', 'hex') }, /invalid message|gone|truncated/],
    ['an endless message', { garbage: Buffer.from('00ffffffff0a', 'hex') }, /too large/],
    ['no answer', { hangs: true }, /in time/],
    ['a sandbox that fails', { phase: 3 }, /could not start the sandbox/],
  ]
  test.each(failing)(
    '%s is a clear error and leaves no sandbox',
    async (_, options, wanted) => {
      const other = await standIn({ open, ...options })
      const failed = await Sandbox.create(spec, composeFor(other.url)).then(
        () => undefined,
        (error: Error) => error,
      )
      expect(failed?.message).toMatch(wanted)
      expect(failed?.message).not.toContain('token-of-the-gateway')
      expect(other.living()).toBe(0)
      await other.close()
    },
    30_000,
  )

  test('uses a client certificate if the gateway requires one', async () => {
    const file = (name: string): string => join(dir, name)
    const subject = ['-subj', '/CN=gateway', '-addext', 'subjectAltName=IP:127.0.0.1']
    const made = ['-keyout', file('key.pem'), '-out', file('cert.pem'), '-days', '1', ...subject]
    execFileSync('openssl', ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', ...made], { stdio: 'ignore' })
    const [key, cert] = [readFileSync(file('key.pem')), readFileSync(file('cert.pem'))]
    const strict = await standIn({ open, tls: { key, cert, ca: cert, rejectUnauthorized: true } })
    const known = { RINGFENCE_OPENSHELL_CA: file('cert.pem') }
    const ours = {
      ...known,
      RINGFENCE_OPENSHELL_CERT: file('cert.pem'),
      RINGFENCE_OPENSHELL_KEY: file('key.pem'),
    }
    await expect(Sandbox.create(spec, composeFor(strict.url))).rejects.toMatchObject({
      code: 'backend-unavailable',
    })
    await expect(Sandbox.create(spec, composeFor(strict.url, known))).rejects.toMatchObject({
      code: 'backend-unavailable',
    })
    const sandbox = await Sandbox.create(spec, composeFor(strict.url, ours))
    expect(text((await sandbox.exec(['echo', 'in'])).stdout)).toBe('in\n')
    await sandbox.close()
    await strict.close()
  }, 30_000)

  test('sends its token only over https', async () => {
    const backend = openshell(
      { mode: 'remote', apiUrl: 'http://gateway.example:8080', apiKey: 'secret' },
      new SandboxRegistry(),
    )
    expect(await backend.probe()).toMatchObject({
      available: false,
      reason: expect.stringContaining('https'),
    })
    expect(await openshell({ mode: 'remote' }, new SandboxRegistry()).probe()).toMatchObject({
      available: false,
    })
  })
})

describe('OpenShell in mirror mode', () => {
  test('runs a local sandbox with the workspace, never a bare shell', async () => {
    const workspace = join(dir, 'mirrored')
    mkdirSync(workspace)
    const compose = composeFor(gateway.url, { RINGFENCE_OPENSHELL_MODE: 'mirror' })
    await using sandbox = await Sandbox.create({ backend: 'openshell', workspace }, compose)
    expect(text((await sandbox.exec('echo x > made; cat made')).stdout)).toBe('x\n')
    const seen = await sandbox.exec(['pgrep', '-c', '.'])
    expect(Number(text(seen.stdout))).toBeLessThan(10)
    expect(await sandbox.layers()).toContain('seccomp')
  })

  test('requires a local backend', async () => {
    await expect(openshell({ mode: 'mirror' }, new SandboxRegistry()).probe()).rejects.toMatchObject({
      code: 'backend-unavailable',
    })
  })
})

describe('the protobuf encoding', () => {
  test('reads what it wrote', () => {
    fc.assert(
      fc.property(
        fc.string(),
        fc.integer({ min: 0, max: 2 ** 48 }),
        fc.uint8Array(),
        (word, number, bytes) => {
          const fields = decode(
            encode({ 1: word, 2: number, 3: { 1: bytes, 2: true }, 4: mapOf({ [`k${word}`]: word }) }),
          )
          expect(textOf(fields, 1)).toBe(Buffer.from(word).toString())
          expect(numberOf(fields, 2)).toBe(number)
          expect([...(bytesOf(messageOf(fields, 3), 1) ?? [])]).toEqual([...bytes])
          expect(textOf(messageOf(fields, 4), 2)).toBe(Buffer.from(word).toString())
        },
      ),
    )
  })

  test('reads or rejects any bytes, within bounds', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 64 }), (bytes) => {
        try {
          decode(bytes)
        } catch (error) {
          expect(error).toBeInstanceOf(Error)
        }
      }),
      { numRuns: 2000 },
    )
  })

  test('encodes a negative number in ten bytes', () => {
    expect(numberOf(decode(Buffer.from('08ffffffffffffffffff01', 'hex')), 1)).toBe(-1)
  })
})
