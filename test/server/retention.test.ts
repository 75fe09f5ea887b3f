import { mkdirSync, mkdtempSync, readdirSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { openStoreTrail } from '../../src/audit/open-store-trail.ts'
import { StoreTrailReader } from '../../src/audit/store-read.ts'
import type { StoreTrail } from '../../src/audit/store-trail.ts'
import { RingfenceClient } from '../../src/client/index.ts'
import { startServer } from '../../src/compose/serve.ts'
import { reviewId } from '../../src/host/review/review.ts'
import { type ApprovalRow, answerApproval, findApproval, insertApproval } from '../../src/store/approvals.ts'
import { openStore } from '../../src/store/open.ts'
import { findIdempotency, findSandbox, insertSandbox, saveIdempotency } from '../../src/store/sandboxes.ts'
import type { Store } from '../../src/store/sql.ts'
import { Templates } from '../../src/supervisor/snapshots/templates.ts'
import { Retention } from '../../src/supervisor/telemetry/retention.ts'
import { type Postgres, startPostgres } from './postgres.ts'
import { startTestServer } from './test-server.ts'

/** Records of sandboxes that ended long ago are deleted, on both databases; everything else stays. */

const DAY = 24 * 3_600_000
const NOW = Date.parse('2031-05-01T12:00:00Z')
const OLD = NOW - 31 * DAY
const YOUNG = NOW - 29 * DAY

let postgres: Postgres
let count = 0
beforeAll(async () => {
  postgres = await startPostgres()
})
afterAll(() => postgres?.stop())

type Row = Partial<Parameters<typeof insertSandbox>[1]>

const sandboxRow = (id: string, more: Row) => ({
  id,
  tenant: 'red',
  keyId: 'key_1',
  state: 'destroyed',
  reason: 'killed',
  backend: 'mock',
  level: 'none',
  spec: '{}',
  agentId: null,
  tokenHash: 'x',
  layers: null,
  instance: 'me',
  epoch: 1,
  createdAt: OLD - DAY,
  expiresAt: null,
  endedAt: OLD,
  byOperator: 0,
  generation: 1,
  idleMs: null,
  ttlMs: null,
  restore: null,
  ...more,
})

const approvalRow = (id: string, sandboxId: string): ApprovalRow => ({
  id,
  tenant: 'red',
  sandboxId,
  execId: null,
  agentId: null,
  command: 'git push',
  cwd: '/',
  decision: '{}',
  host: null,
  scope: null,
  state: 'pending',
  answeredBy: null,
  reason: null,
  askedAt: OLD - DAY,
  expiresAt: OLD,
  answeredAt: null,
  instance: 'me',
})

describe.each(['sqlite', 'postgres'] as const)('retention on %s', (kind) => {
  let home: string
  let store: Store
  let trail: StoreTrail
  let templates: Templates
  let reviews: string[]
  let keepDays: number
  beforeEach(async () => {
    home = mkdtempSync(join(tmpdir(), 'rf-keep-'))
    const databaseUrl = kind === 'postgres' ? postgres.fresh(`k${count++}`) : undefined
    store = await openStore({ stateDir: home, databaseUrl })
    trail = await openStoreTrail({ home, store })
    templates = new Templates(store, join(home, 'templates'))
    reviews = []
    keepDays = 30
    return async () => {
      await trail.close()
      await store.close()
      rmSync(home, { recursive: true, force: true })
    }
  })

  const retention = (more: Partial<ConstructorParameters<typeof Retention>[0]> = {}): Retention =>
    new Retention({
      store,
      trail,
      templates,
      instance: { id: 'me' },
      keepDays: () => keepDays,
      reviews: () => reviews,
      log: () => {},
      now: () => NOW,
      ...more,
    })
  const put = (id: string, more: Row = {}): Promise<void> =>
    store.write((tx) => insertSandbox(tx, sandboxRow(id, more)))
  const ask = async (id: string, sandboxId: string, answeredAt?: number): Promise<void> => {
    await store.write((tx) => insertApproval(tx, approvalRow(id, sandboxId)))
    if (answeredAt !== undefined)
      await store.write((tx) => answerApproval(tx, id, { state: 'approved', by: 'key_1', at: answeredAt }))
  }
  const left = async (): Promise<unknown[]> =>
    (await store.read('SELECT id FROM sandboxes ORDER BY id')).map(({ id }) => id)
  const records = (tenant?: string) =>
    new StoreTrailReader(home, store).query({ tenant, limit: 1000 }).then((all) => all.slice())
  const noted = async () => (await records()).filter(({ event }) => event === 'Pruning')

  test('sandboxes that ended long ago are deleted with their idempotency keys and approvals, and this is recorded', async () => {
    await put('sb_a')
    await put('sb_b', { state: 'failed', reason: 'crashed' })
    await ask('ap_a', 'sb_a', OLD)
    await store.write((tx) => saveIdempotency(tx, 'red', 'once', { request: 'r', sandboxId: 'sb_a' }))
    const gone = { sandboxes: 2, approvals: 1, files: 0 }
    expect(await retention().pass()).toEqual({ ...gone, more: false })
    expect(await left()).toEqual([])
    expect(await findApproval(store, 'ap_a')).toBeUndefined()
    expect(await findIdempotency(store, 'red', 'once')).toBeUndefined()
    expect(await noted()).toMatchObject([{ ...gone, ended_before: '2031-04-01T12:00:00.000Z' }])
    expect(await retention().pass()).toMatchObject({ sandboxes: 0 })
    expect((await noted()).length).toBe(1)
  })

  test('running, recently ended or reviewed sandboxes and those with open approvals stay, with all their records', async () => {
    const never = { endedAt: null }
    await put('sb_ready', { state: 'ready', ...never })
    await put('sb_paused', { state: 'paused', ...never })
    await put('sb_odd', { state: 'destroying', endedAt: OLD })
    await put('sb_young', { endedAt: YOUNG })
    await put('sb_pending')
    await put('sb_late')
    await put('sb_0abc', { spec: '{"review":true}' })
    await put('sb_theirs', { spec: '{"review":true}', instance: 'you', endedAt: OLD - 300 * DAY })
    reviews = [reviewId('sb_0abc')]
    await ask('ap_ready', 'sb_ready', OLD)
    await ask('ap_review', 'sb_0abc', OLD)
    await ask('ap_pending', 'sb_pending')
    await ask('ap_late', 'sb_late', YOUNG)
    await store.write((tx) => saveIdempotency(tx, 'red', 'ready', { request: 'r', sandboxId: 'sb_ready' }))
    const before = await left()
    expect(before.length).toBe(8)
    expect(await retention().pass()).toEqual({ sandboxes: 0, approvals: 0, files: 0, more: false })
    expect(await left()).toEqual(before)
    for (const id of ['ap_ready', 'ap_review', 'ap_pending', 'ap_late'])
      expect(await findApproval(store, id)).toBeDefined()
    expect(await findIdempotency(store, 'red', 'ready')).toBeDefined()
    expect(await noted()).toEqual([])
    // After its changes are applied or dropped, the sandbox can be deleted too.
    reviews = []
    expect(await retention().pass()).toMatchObject({ sandboxes: 1, approvals: 1 })
    expect(await findSandbox(store, 'sb_0abc')).toBeUndefined()
  })

  test('the store itself never deletes a sandbox that runs or has an open approval', async () => {
    const { forgetSandboxes } = await import('../../src/store/retention.ts')
    await put('sb_ready', { state: 'ready', endedAt: null })
    await put('sb_asked')
    await ask('ap', 'sb_asked')
    await put('sb_gone')
    const ids = ['sb_ready', 'sb_asked', 'sb_gone', 'sb_unknown']
    await store.write((tx) => forgetSandboxes(tx, store.kind, { ids, states: ['destroyed', 'failed'] }))
    expect(await left()).toEqual(['sb_asked', 'sb_ready'])
  })

  test('sandboxes of another server are deleted one day later than our own', async () => {
    await put('sb_mine', { endedAt: NOW - 30 * DAY - 1 })
    await put('sb_theirs', { endedAt: NOW - 30 * DAY - 1, instance: 'you' })
    await put('sb_left', { endedAt: NOW - 31 * DAY - 1, instance: 'you' })
    expect(await retention().pass()).toMatchObject({ sandboxes: 2 })
    expect(await left()).toEqual(['sb_theirs'])
  })

  test('a tenant can still read its own audit records, and no others', async () => {
    await put('sb_red')
    await put('sb_blue', { tenant: 'blue' })
    for (const sandbox_id of ['sb_red', 'sb_blue'])
      await trail.append({ event: 'SandboxState', sandbox_id, state: 'destroyed' })
    const before = await records('red')
    expect(before.length).toBe(1)
    expect(await retention().pass()).toMatchObject({ sandboxes: 2 })
    expect(await records('red')).toEqual(before)
    expect((await records('blue')).map(({ sandbox_id }) => sandbox_id)).toEqual(['sb_blue'])
    expect(await records('green')).toEqual([])
    expect(await new StoreTrailReader(home, store).verify()).toMatchObject({ ok: true })
  })

  test('a pass is bounded, and sandboxes that must stay do not block later ones', async () => {
    const all = Array.from({ length: 1150 }, (_, n) => n)
    const id = (n: number): string => `sb_${String(n).padStart(4, '0')}`
    const spec = '{"review":true}'
    // The oldest 1100 have changes to review; the 50 after them can be deleted.
    await Promise.all(all.map((n) => put(id(n), { endedAt: OLD - 5000 + n, ...(n < 1100 && { spec }) })))
    reviews = all.slice(0, 1100).map((n) => reviewId(id(n)))
    const passes = retention()
    expect(await passes.pass()).toEqual({ sandboxes: 0, approvals: 0, files: 0, more: true })
    expect(await passes.pass()).toEqual({ sandboxes: 50, approvals: 0, files: 0, more: false })
    reviews = []
    expect(await passes.pass()).toMatchObject({ sandboxes: 1000, more: true })
    expect(await passes.pass()).toMatchObject({ sandboxes: 100, more: false })
    expect((await noted()).map(({ sandboxes }) => sandboxes)).toEqual([50, 1000, 100])
  })

  test('nothing is deleted if the audit record cannot be written', async () => {
    await put('sb_a')
    const broken = retention({
      trail: {
        append: async () => {
          throw new Error('no room')
        },
      },
    })
    await expect(broken.pass()).rejects.toThrow('no room')
    expect(await left()).toEqual(['sb_a'])
  })

  test('the setting is read for each pass', async () => {
    await put('sb_a')
    const passes = retention()
    keepDays = 365
    expect(await passes.pass()).toMatchObject({ sandboxes: 0 })
    keepDays = 1
    expect(await passes.pass()).toMatchObject({ sandboxes: 1 })
  })

  test('uploads of builds are deleted by last use; archives of snapshots stay', async () => {
    const dir = join(home, 'templates')
    const hash = (digit: string): string => digit.repeat(64)
    const files = [`upload-red-${hash('a')}`, `upload-red-${hash('b')}`, 'snp_1-0.tar', 'snp_2-0.tar.tmp']
    const twoDaysAgo = new Date(Date.now() - 2 * DAY)
    for (const name of files) {
      writeFileSync(join(dir, name), 'x')
      utimesSync(join(dir, name), twoDaysAgo, twoDaysAgo)
    }
    const passes = retention({ now: Date.now })
    expect(await passes.pass()).toMatchObject({ files: 0 })
    keepDays = 1
    expect(templates.upload('red', hash('b')).present).toBe(true)
    expect(templates.upload('red', hash('c')).present).toBe(false)
    expect(await passes.pass()).toMatchObject({ sandboxes: 0, files: 2 })
    expect(readdirSync(dir).sort()).toEqual(['snp_1-0.tar', `upload-red-${hash('b')}`])
    expect(await noted()).toMatchObject([{ files: 2 }])
  })
})

describe('a server', () => {
  const aged = (store: Store, id: string): Promise<unknown> =>
    store.write((tx) => tx.run('UPDATE sandboxes SET ended_at = ? WHERE id = ?', [Date.now() - 40 * DAY, id]))

  test('prunes at start, applies keep_days after a reload, and keeps sandboxes with unapplied changes', async () => {
    const home = await startTestServer('[server]\nkeep_days = 400\n')
    const file = join(home.dir, 'ringfence.toml')
    const workspace = join(home.dir, 'ws')
    mkdirSync(workspace)
    const client = new RingfenceClient({ url: home.server.url, apiKey: home.admin })
    const [live, ended, reviewed] = [
      await client.create({ backend: 'mock' }),
      await client.create({ backend: 'mock' }),
      await client.create({ workspace, review: true }),
    ]
    await reviewed.exec('echo new > file')
    for (const sandbox of [ended, reviewed]) await sandbox.close()
    for (const { id } of [ended, reviewed]) await aged(home.server.store, id)
    expect(await home.server.prune()).toMatchObject({ sandboxes: 0 })
    writeFileSync(file, '[server]\nkeep_days = 0\n')
    await expect(home.server.reload()).rejects.toThrow('keep_days')
    expect(await home.server.prune()).toMatchObject({ sandboxes: 0 })
    writeFileSync(file, '')
    await home.server.reload()
    expect(await home.server.prune()).toMatchObject({ sandboxes: 1 })
    const status = async (id: string) => (await home.call('GET', `/v1/sandboxes/${id}`)).status
    expect(await Promise.all([live, ended, reviewed].map(({ id }) => status(id)))).toEqual([200, 404, 200])
    expect((await reviewed.changes()).total).toBe(1)
    const audit = await home.call('GET', `/v1/audit?sandbox_id=${ended.id}`)
    expect(audit.json.items.length).toBeGreaterThan(0)
    expect((await home.call('GET', '/v1/audit?event=Pruning')).json.items).toMatchObject([{ sandboxes: 1 }])
    expect((await home.call('POST', `/v1/sandboxes/${reviewed.id}/review/drop`, { body: {} })).status).toBe(
      204,
    )
    await home.server.close()
    const env = { PATH: process.env.PATH, HOME: home.dir, RINGFENCE_HOME: join(home.dir, 'state') }
    const again = await startServer({ port: 0, config: file, env, cwd: home.dir })
    // Waits for the pass that started with the server; if that has ended, a new pass finds nothing.
    await again.prune()
    expect(await findSandbox(again.store, reviewed.id)).toBeUndefined()
    expect((await again.parts.trail.query({ events: ['Pruning'], limit: 10 })).length).toBe(2)
    await again.close()
    await home.close()
  })
})
