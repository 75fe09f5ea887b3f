import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { hasPostgres, type Postgres, startPostgres } from './postgres.ts'
import { startProcess } from './process.ts'

/** `ringfence migrate` on a real PostgreSQL, and what a server says when it cannot start. */

const base = mkdtempSync(join(tmpdir(), 'rf-migrate-'))
const program = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
afterAll(() => rmSync(base, { recursive: true, force: true }))

function ringfence(home: string, ...args: readonly string[]) {
  const env = { PATH: process.env.PATH, HOME: home, RINGFENCE_HOME: join(home, 'state') }
  return spawnSync(process.execPath, [program, ...args], {
    env,
    cwd: home,
    encoding: 'utf8',
    timeout: 50_000,
  })
}

function homeOf(name: string): string {
  const home = join(base, name)
  mkdirSync(home)
  return home
}

/** A state directory whose records a server has written into SQLite. */
async function served(name: string): Promise<{ readonly home: string; readonly key: string }> {
  const home = homeOf(name)
  const server = await startProcess(home)
  const made = await server.call('POST', '/v1/sandboxes', { body: {} })
  expect(made.status).toBe(201)
  server.child.kill('SIGTERM')
  await server.ended
  return { home, key: server.key }
}

describe.runIf(hasPostgres)('migrate', () => {
  let postgres: Postgres
  beforeAll(async () => {
    postgres = await startPostgres()
  })
  afterAll(() => postgres?.stop())

  test('moves all data and verifies it; a second run only verifies', async () => {
    const { home, key } = await served('moved')
    const exported = ringfence(home, 'audit', 'export').stdout
    // Before the migration: a clear error, which reports neither a defect nor tampering.
    const early = ringfence(home, 'serve', '--port', '0', '--database-url', postgres.url)
    expect([early.status, early.stderr]).toEqual([2, expect.stringContaining('ringfence migrate')])
    expect(early.stderr).not.toMatch(/defect|tampered/)
    const moved = ringfence(home, 'migrate', '--database-url', postgres.url, '--json')
    expect(moved.stderr).toBe('')
    const done = JSON.parse(moved.stdout)
    expect(done.copied).toBe(true)
    expect(done.tables.find((one: { table: string }) => one.table === 'trail').rows).toBeGreaterThan(0)
    const again = ringfence(home, 'migrate', '--database-url', postgres.url, '--json')
    expect(JSON.parse(again.stdout)).toMatchObject({ copied: false, records: done.records })
    // The API key works on PostgreSQL, and the audit log continues.
    const server = await startProcess(home, { args: ['--database-url', postgres.url], key })
    expect((await server.call('GET', '/v1/sandboxes')).status).toBe(200)
    server.child.kill('SIGTERM')
    await server.ended
    const env = {
      PATH: process.env.PATH,
      HOME: home,
      RINGFENCE_HOME: join(home, 'state'),
      RINGFENCE_DATABASE_URL: postgres.url,
    }
    const audit = (...args: readonly string[]) =>
      spawnSync(process.execPath, [program, 'audit', ...args], { env, encoding: 'utf8' })
    expect(audit('verify').stdout).toMatch(/^ok: /)
    expect(audit('export').stdout.startsWith(exported)).toBe(true)
    // Without the database, the error says so.
    const without = ringfence(home, 'serve', '--port', '0')
    expect([without.status, without.stderr]).toEqual([2, expect.stringContaining('--database-url')])
  })

  test('refuses while a server runs, which would write records that are not copied', async () => {
    const home = homeOf('running')
    const server = await startProcess(home)
    const refused = ringfence(home, 'migrate', '--database-url', postgres.fresh('running'))
    server.child.kill('SIGTERM')
    await server.ended
    expect([refused.status, refused.stderr]).toEqual([2, expect.stringContaining('already uses')])
  })

  test('refuses a database that is not empty, and changes nothing', async () => {
    const { home } = await served('refused')
    const note = readFileSync(join(home, 'state', 'anchor', 'store.json'), 'utf8')
    const moved = ringfence(home, 'migrate', '--database-url', postgres.url)
    expect([moved.status, moved.stderr]).toEqual([2, expect.stringContaining('is not empty')])
    expect(readFileSync(join(home, 'state', 'anchor', 'store.json'), 'utf8')).toBe(note)
    expect(ringfence(home, 'audit', 'verify').stdout).toMatch(/^ok: /)
  })

  test.each<[string, () => string, RegExp]>([
    ['a missing database', () => postgres.url.replace('/ringfence?', '/missing?'), /database does not exist/],
    ['a malformed URL', () => 'postgres://[', /database URL is not valid/],
    ['another database system', () => 'mysql://x/y', /only postgres/],
    ['no server at that address', () => 'postgres://x@127.0.0.1:1/y', /does not respond/],
  ])('and serve report an unusable database URL: %s', (_, url, wanted) => {
    const home = mkdtempSync(join(base, 'wrong-'))
    for (const args of [['serve', '--port', '0'], ['migrate']]) {
      const { status, stderr } = ringfence(home, ...args, '--database-url', url())
      expect(stderr).toMatch(wanted)
      expect(stderr).not.toMatch(/defect|tampered|internal/)
      expect([2, 125]).toContain(status)
    }
  })
})

test('migrate without --database-url is an error', () => {
  const home = homeOf('fresh')
  expect(ringfence(home, 'migrate').stderr).toContain('--database-url')
})
