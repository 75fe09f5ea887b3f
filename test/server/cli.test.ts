import { execFile } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { type Process, startProcess, until } from './process.ts'

/** The command line against a server, both as processes. */

const home = mkdtempSync(join(tmpdir(), 'rf-remote-'))
const config = join(home, 'c.toml')
let server: Process
beforeAll(async () => {
  writeFileSync(
    config,
    '[[policy.rule]]\nprefix = ["touch", "asked"]\naction = "ask"\nmatch = ["touch asked"]\n',
  )
  server = await startProcess(home, { args: ['--config', config] })
})
afterAll(async () => {
  server.child.kill('SIGTERM')
  await server.ended
  rmSync(home, { recursive: true, force: true })
})

type Said = { readonly code: number; readonly out: string; readonly err: string }
const ringfence = (...args: string[]): Promise<Said> =>
  new Promise((resolve) => {
    const env = {
      PATH: process.env.PATH,
      HOME: home,
      RINGFENCE_HOME: join(home, 'state'),
      RINGFENCE_URL: server.url,
      RINGFENCE_API_KEY: server.key,
    }
    execFile(
      process.execPath,
      [join(packageRoot(), 'dist', 'cli', 'ringfence.cjs'), ...args],
      { env },
      (error, out, err) => resolve({ code: error ? Number(error.code) : 0, out, err }),
    )
  })

test('sandbox create, exec, cp, logs, port, ls, get and rm work against a server', async () => {
  const made = await ringfence(
    'sandbox',
    'create',
    '--timeout',
    '60',
    '--agent-id',
    'cli',
    '--metadata',
    'a=b',
  )
  expect(made).toMatchObject({ code: 0, err: '' })
  const id = made.out.trim()
  expect(await ringfence('sandbox', 'exec', id, '-c', 'echo out; echo err >&2; exit 7')).toEqual({
    code: 7,
    out: 'out\n',
    err: 'err\n',
  })
  expect((await ringfence('sandbox', 'exec', id, '--', 'echo', 'a b')).out).toBe('a b\n')
  expect(await ringfence('sandbox', 'exec', id, '-c', 'rm -rf /')).toMatchObject({ code: 126, out: '' })
  expect((await ringfence('sandbox', 'exec', id, '--timeout', '0.2', '--', 'sleep', '60')).code).toBe(124)
  const file = join(home, 'up.txt')
  writeFileSync(file, 'carried')
  expect(await ringfence('sandbox', 'cp', file, `${id}:/tmp/in.txt`)).toMatchObject({ code: 0, err: '' })
  expect(await ringfence('sandbox', 'cp', `${id}:/tmp/in.txt`, join(home, 'down.txt'))).toMatchObject({
    code: 0,
  })
  expect(readFileSync(join(home, 'down.txt'), 'utf8')).toBe('carried')
  expect((await ringfence('sandbox', 'logs', id)).out).toContain('PolicyDecision')
  expect((await ringfence('sandbox', 'port', id, '8000')).out.trim()).toBe(
    `${server.url}/v1/sandboxes/${id}/ports/8000/`,
  )
  expect(JSON.parse((await ringfence('sandbox', 'ls', '--json')).out).items[0]).toMatchObject({
    id,
    metadata: { a: 'b' },
  })
  expect((await ringfence('sandbox', 'get', id)).out).toContain('bubblewrap')
  expect(await ringfence('sandbox', 'pause', id)).toMatchObject({ code: 0 })
  expect(await ringfence('sandbox', 'resume', id)).toMatchObject({ code: 0 })
  await ringfence('sandbox', 'exec', id, '--', 'sh', '-c', 'echo kept > /tmp/kept')
  expect(await ringfence('sandbox', 'snapshot', id)).toMatchObject({ code: 0 })
  const forked = JSON.parse((await ringfence('sandbox', 'fork', id, '--json')).out).id
  expect((await ringfence('sandbox', 'exec', forked, '--', 'cat', '/tmp/kept')).out).toBe('kept\n')
  expect((await ringfence('sandbox', 'rm', forked)).code).toBe(0)
  expect((await ringfence('sandbox', 'rm', id)).out).toBe(`${id}: destroyed\n`)
  expect(await ringfence('sandbox', 'get', 'sb_none')).toMatchObject({
    code: 2,
    err: expect.stringContaining('sandbox-not-found'),
  })
})

test('key, approve, reject, reload and audit work against a server', async () => {
  const made = JSON.parse((await ringfence('key', 'create', '--scope', 'read', '--e2b', '--json')).out)
  expect(made.key).toMatch(/^e2b_[0-9a-f]{40}$/)
  expect((await ringfence('key', 'ls')).out).toContain(made.id)
  expect((await ringfence('key', 'revoke', made.id)).code).toBe(0)
  const id = (await ringfence('sandbox', 'create')).out.trim()
  const waiting = ringfence('sandbox', 'exec', id, '-c', 'touch asked && echo went')
  let question = ''
  await until(async () => {
    question = /ap_\w+/.exec((await ringfence('approve')).out)?.[0] ?? ''
    return question !== ''
  })
  expect((await ringfence('approve', question)).out).toBe(`${question}: approved\n`)
  expect(await waiting).toMatchObject({ code: 0, out: 'went\n' })
  const refused = ringfence('sandbox', 'exec', id, '-c', 'touch asked && echo twice')
  await until(async () => {
    question = /ap_\w+/.exec((await ringfence('approve')).out)?.[0] ?? ''
    return question !== ''
  })
  expect((await ringfence('reject', question, '--reason', 'once is enough')).out).toBe(
    `${question}: rejected\n`,
  )
  expect((await refused).err).toMatch(/approval-required: .*rejected by `key_\w+`: once is enough/)
  expect((await ringfence('reload')).out).toMatch(/policy [0-9a-f]{16}/)
  expect((await ringfence('audit', 'verify')).out).toMatch(/^ok: \d+ records/)
  expect((await ringfence('audit', 'query', '--event', 'Approval')).out).toContain(question)
  const lines = (await ringfence('audit', 'export')).out.trim().split('\n')
  expect(JSON.parse(lines[0] as string)).toMatchObject({ seq: 0 })
  await ringfence('sandbox', 'rm', id)
})

test('an unreachable server is reported in one line', async () => {
  const env = { PATH: process.env.PATH, RINGFENCE_URL: 'http://127.0.0.1:1', RINGFENCE_API_KEY: 'x' }
  const said = await new Promise<string>((resolve) =>
    execFile(
      process.execPath,
      [join(packageRoot(), 'dist', 'cli', 'ringfence.cjs'), 'sandbox', 'ls'],
      { env },
      (_, __, err) => resolve(err),
    ),
  )
  expect(said).toMatch(/^ringfence: unreachable: /)
}, 30_000)
