import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gunzipSync, gzipSync } from 'node:zlib'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { hasPostgres, type Postgres, startPostgres } from './postgres.ts'
import { type Process, startProcess } from './process.ts'

/** `ringfence backup` and `restore` with the built command line and real servers. */

const base = mkdtempSync(join(tmpdir(), 'rf-backup-'))
const program = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
afterAll(() => rmSync(base, { recursive: true, force: true }))

function homeOf(name: string): string {
  const home = join(base, name)
  mkdirSync(join(home, 'work'), { recursive: true })
  return home
}

function ringfence(home: string, ...args: readonly string[]) {
  const env = { PATH: process.env.PATH, HOME: home, RINGFENCE_HOME: join(home, 'state') }
  const { status, stdout, stderr } = spawnSync(process.execPath, [program, ...args], {
    env,
    cwd: home,
    encoding: 'utf8',
    timeout: 50_000,
  })
  return { status, stdout, stderr }
}

/** A command whose records go to the audit log. */
const recorded = (home: string) =>
  ringfence(home, 'run', '--backend', 'mock', '--workspace', join(home, 'work'), '--', 'true')

async function stop(server: Process): Promise<void> {
  server.child.kill('SIGTERM')
  await server.ended
}

/** The same bytes with another content for one file of the archive. */
function changed(file: string, to: string, change: (tar: Buffer) => void): void {
  const tar = gunzipSync(readFileSync(file))
  change(tar)
  writeFileSync(to, gzipSync(tar))
}

describe('a backup of SQLite', () => {
  const file = join(base, 'backup.tar.gz')
  let source: string
  let key: string
  let exported: string

  beforeAll(async () => {
    source = homeOf('source')
    const server = await startProcess(source)
    key = server.key
    for (let count = 0; count < 3; count++)
      expect((await server.call('POST', '/v1/sandboxes', { body: { backend: 'mock' } })).status).toBeLessThan(
        500,
      )
    await server.call('POST', '/v1/webhooks', { body: { url: 'https://example.com/', events: [] } })
    // While the server runs.
    const made = ringfence(source, 'backup', file, '--json')
    expect(made.stderr).toBe('')
    expect(JSON.parse(made.stdout)).toMatchObject({ file, records: expect.any(Number) })
    exported = ringfence(source, 'audit', 'export').stdout
    await stop(server)
  }, 60_000)

  test('is readable only by its owner and never overwrites a file', () => {
    expect(statSync(file).mode & 0o777).toBe(0o600)
    expect(ringfence(source, 'backup', file)).toMatchObject({
      status: 2,
      stderr: expect.stringContaining('exists'),
    })
    expect(readdirSync(base).filter((name) => name.includes('partial') || name.includes('files-'))).toEqual(
      [],
    )
  })

  test('restores records, keys and the audit log, which continues after the restore', async () => {
    const home = homeOf('restored')
    const done = ringfence(home, 'restore', file)
    expect(done.stderr).toBe('')
    expect(done.stdout).toMatch(/verifies\n$/)
    expect(ringfence(home, 'audit', 'verify').stdout).toMatch(/^ok: /)
    const restored = ringfence(home, 'audit', 'export').stdout
    expect(restored.length).toBeGreaterThan(100)
    expect(exported.startsWith(restored)).toBe(true)
    const server = await startProcess(home, { key })
    expect((await server.call('GET', '/v1/webhooks')).json.items).toHaveLength(1)
    await stop(server)
    expect(ringfence(home, 'audit', 'verify').stdout).toMatch(/^ok: /)
  })

  test('replaces an existing state directory only with --force, and keeps the old one', () => {
    const home = homeOf('used')
    expect(recorded(home).status).toBe(0)
    const before = ringfence(home, 'audit', 'export').stdout
    expect(ringfence(home, 'restore', file)).toMatchObject({
      status: 2,
      stderr: expect.stringContaining('--force'),
    })
    expect(ringfence(home, 'audit', 'export').stdout).toBe(before)
    const forced = JSON.parse(ringfence(home, 'restore', file, '--force', '--json').stdout)
    expect(existsSync(join(forced.kept, 'anchor', 'head.jsonl'))).toBe(true)
    expect(exported.startsWith(ringfence(home, 'audit', 'export').stdout)).toBe(true)
  })

  test('cannot be restored while a server runs on that state directory', async () => {
    const home = homeOf('running')
    const server = await startProcess(home)
    const refused = ringfence(home, 'restore', file, '--force')
    expect(refused).toMatchObject({ status: 2, stderr: expect.stringContaining('stop it first') })
    expect((await server.call('GET', '/v1/sandboxes')).status).toBe(200)
    await stop(server)
  })

  describe('that was modified is refused and replaces nothing', () => {
    const refuses = (name: string, backup: string, problem: RegExp): void => {
      const home = homeOf(name)
      mkdirSync(join(home, 'state'), { mode: 0o700 })
      const refused = ringfence(home, 'restore', backup)
      expect(refused.status).toBe(2)
      expect(refused.stderr).toMatch(problem)
      expect(readdirSync(join(home, 'state'))).toEqual([])
      expect(readdirSync(home).filter((one) => one.startsWith('state.'))).toEqual([])
    }

    test('one changed byte', () => {
      const to = join(base, 'byte.tar.gz')
      changed(file, to, (tar) => {
        const at = tar.lastIndexOf('"event"')
        tar[at + 10] = (tar[at + 10] as number) ^ 1
      })
      refuses('byte', to, /was changed/)
    })

    test('a changed audit log with a matching checksum', () => {
      const to = join(base, 'forged.tar.gz')
      changed(file, to, forge)
      refuses('forged', to, /does not verify: record \d+/)
    })

    test('a truncated file', () => {
      const to = join(base, 'cut.tar.gz')
      writeFileSync(to, readFileSync(file).subarray(0, statSync(file).size >> 1))
      refuses('cut', to, /damaged/)
    })

    test('a file that is not a backup', () => {
      const to = join(base, 'none.tar.gz')
      writeFileSync(to, 'hello')
      refuses('none', to, /damaged/)
      refuses('absent', join(base, 'absent.tar.gz'), /no backup/)
    })
  })

  test('that is older than an exported head of the audit log is refused', () => {
    const home = homeOf('rolled')
    const head = join(source, 'state', 'anchor', 'head.jsonl')
    const refused = ringfence(home, 'restore', file, '--against', head)
    expect(refused).toMatchObject({ status: 2, stderr: expect.stringContaining('kept elsewhere') })
    expect(existsSync(join(home, 'state', 'anchor'))).toBe(false)
  })
})

/** Changes one record in the store and the hash in the list: only the hash chain can tell. */
function forge(tar: Buffer): void {
  const text = tar.toString('latin1')
  const name = 'ringfence.db'
  const list = new RegExp(`"path":"${name}","size":(\\d+),"sha256":"([0-9a-f]{64})"`).exec(text)
  const size = Number(list?.[1])
  let at = 512 + Math.ceil(Number.parseInt(text.slice(124, 135), 8) / 512) * 512
  while (text.slice(at, at + name.length + 1) !== `${name}\0`)
    at += 512 + Math.ceil(Number.parseInt(text.slice(at + 124, at + 135), 8) / 512) * 512
  const content = tar.subarray(at + 512, at + 512 + size)
  for (
    let found = content.indexOf('"event":"SandboxS');
    found >= 0;
    found = content.indexOf('"event":"SandboxS', found + 1)
  )
    content.write('"event":"SandboxX', found, 'latin1')
  tar.write(createHash('sha256').update(content).digest('hex'), text.indexOf(list?.[2] as string), 'latin1')
}

test('a state directory without a server is backed up and restored while commands write', async () => {
  const home = homeOf('files')
  for (let count = 0; count < 3; count++) recorded(home)
  // What a writer had appended and not signed yet.
  const segment = join(home, 'state', 'trail', '000001.jsonl')
  const whole = readFileSync(segment, 'utf8')
  appendFileSync(segment, '{"half":')
  const file = join(base, 'files.tar.gz')
  expect(ringfence(home, 'backup', file)).toMatchObject({ status: 0, stderr: '' })
  const other = homeOf('files-restored')
  expect(ringfence(other, 'restore', file)).toMatchObject({ status: 0, stderr: '' })
  expect(readFileSync(join(other, 'state', 'trail', '000001.jsonl'), 'utf8')).toBe(whole)
  expect(recorded(other).status).toBe(0)
  expect(ringfence(other, 'audit', 'verify').stdout).toMatch(/^ok: /)
})

test('a backup of an empty state directory is an error', () => {
  const home = homeOf('nothing')
  expect(ringfence(home, 'backup', join(base, 'nothing.tar.gz'))).toMatchObject({
    status: 2,
    stderr: expect.stringContaining('nothing to back up'),
  })
})

describe.runIf(hasPostgres)('a backup of PostgreSQL', () => {
  let postgres: Postgres
  beforeAll(async () => {
    postgres = await startPostgres()
  }, 60_000)
  afterAll(() => postgres?.stop())

  test('restores to an empty database, or to SQLite', async () => {
    const home = homeOf('pg')
    const server = await startProcess(home, { args: ['--database-url', postgres.url] })
    await server.call('POST', '/v1/webhooks', { body: { url: 'https://example.com/', events: [] } })
    const file = join(base, 'pg.tar.gz')
    const made = ringfence(home, 'backup', file, '--database-url', postgres.url)
    expect(made).toMatchObject({ status: 0, stderr: '' })
    await stop(server)
    const filled = homeOf('pg-filled')
    const refused = ringfence(filled, 'restore', file, '--database-url', postgres.url)
    expect(refused).toMatchObject({ status: 2, stderr: expect.stringContaining('not empty') })
    expect(existsSync(join(filled, 'state'))).toBe(false)
    const url = postgres.fresh('restored')
    expect(ringfence(filled, 'restore', file, '--database-url', url)).toMatchObject({ status: 0, stderr: '' })
    await works(filled, server.key, ['--database-url', url])
    const lite = homeOf('pg-lite')
    expect(ringfence(lite, 'restore', file)).toMatchObject({ status: 0, stderr: '' })
    await works(lite, server.key, [])
  }, 120_000)

  async function works(home: string, key: string, args: readonly string[]): Promise<void> {
    const server = await startProcess(home, { key, args })
    expect((await server.call('GET', '/v1/webhooks')).json.items).toHaveLength(1)
    await stop(server)
    if (args.length === 0) expect(ringfence(home, 'audit', 'verify').stdout).toMatch(/^ok: /)
  }
})
