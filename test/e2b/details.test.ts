import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { fromE2bId } from '../../src/server/e2b/ids.ts'
import { client, get, type Loose, until, type World, world } from './kit.ts'

/** Details of E2B's contract that its users' programs rely on: statuses, phrases, bounds and names. */

let here: World
let e2b: Loose
let sandbox: Loose
beforeAll(async () => {
  here = await world('[server]\nhosts = ["*.sbx.test"]\n')
  e2b = await client('e2b')
  sandbox = await e2b.Sandbox.create(here.options)
})
afterAll(async () => {
  await here.close()
  expect(here.logs).toEqual([])
})

test('logs: a limit that is not a whole number is refused', async () => {
  const status = async (limit: string): Promise<number> =>
    (
      await fetch(`${here.options.apiUrl}/sandboxes/${sandbox.sandboxId}/logs?limit=${limit}`, {
        headers: { 'x-api-key': here.options.apiKey },
      })
    ).status
  for (const limit of ['1.5', '-1', '1e400', 'many']) expect(await status(limit), limit).toBe(400)
  for (const limit of ['0', '1', '5000']) expect(await status(limit), limit).toBe(200)
})

describe('files', () => {
  test('report the owner that programs in the sandbox see', async () => {
    await sandbox.commands.run('mkdir d; echo x > d/f')
    const inside = (await sandbox.commands.run('stat -c "%U %G" d/f /etc')).stdout.trim().split('\n')
    const f = await sandbox.files.getInfo('d/f')
    const etc = await sandbox.files.getInfo('/etc')
    expect([f, etc].map(({ owner, group }) => `${owner} ${group}`)).toEqual(inside)
    expect(f.owner).toBe('user')
    const [listed] = await sandbox.files.list('d')
    expect([listed.owner, listed.group]).toEqual(['user', 'user'])
  })

  test('signed URLs distinguish an expired from an invalid signature', async () => {
    await sandbox.files.write('signed.txt', 'x')
    const late = await sandbox.downloadUrl('signed.txt', { useSignatureExpiration: -10_000 })
    const answer = await fetch(late)
    expect([answer.status, await answer.json()]).toEqual([
      401,
      { code: 401, message: 'signature is already expired' },
    ])
    // Moving the time of a signed address makes it a wrong one.
    const moved = new URL(late)
    moved.searchParams.set('signature_expiration', String(Math.ceil(Date.now() / 1000) + 60))
    const named = { 'e2b-sandbox-id': sandbox.sandboxId, 'e2b-sandbox-port': '49983' }
    const wrong = await fetch(moved, { headers: named })
    expect([wrong.status, ((await wrong.json()) as Loose).message]).toEqual([401, 'invalid signature'])
    const upload = await sandbox.uploadUrl('signed.txt', { useSignatureExpiration: -10_000 })
    expect((await fetch(upload, { method: 'POST', body: 'y' })).status).toBe(401)
    expect(await sandbox.files.read('signed.txt')).toBe('x')
  })
})

describe('what a sandbox makes the server keep is limited', () => {
  const rpc = async (method: string, message: object): Promise<Loose> => {
    const answer = await fetch(`${here.options.apiUrl}/filesystem.Filesystem/${method}`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        'x-access-token': sandbox.envdAccessToken,
        'e2b-sandbox-id': sandbox.sandboxId,
      },
      body: JSON.stringify(message),
    })
    return answer.json()
  }

  test('a listing has at most 50,000 entries', async () => {
    await sandbox.commands.run('mkdir -p many/a many/b; cd many/a; seq 49999 | xargs touch; touch ../b/{x,y}')
    const all = await rpc('ListDir', { path: 'many', depth: 2 })
    expect(all).toMatchObject({ message: expect.stringMatching(/more than 50000 entries \(.*less depth/) })
    expect((await rpc('ListDir', { path: 'many/a', depth: 16 })).entries).toHaveLength(49_999)
    expect((await rpc('ListDir', { path: 'many', depth: 1 })).entries).toHaveLength(2)
    const key = await here.key(undefined, ['read'])
    const path = encodeURIComponent('/home/user/many')
    const plain = await fetch(
      `${here.options.apiUrl}/v1/sandboxes/${fromE2bId(sandbox.sandboxId)}/files/list?path=${path}&depth=16`,
      { headers: { authorization: `Bearer ${key}` } },
    )
    expect([plain.status, ((await plain.json()) as Loose).code]).toEqual([413, 'too-large'])
  })

  test('a burst of requests gets no more watchers than requests one by one', async () => {
    await sandbox.commands.run('mkdir -p watched')
    const made = await Promise.all(
      Array.from({ length: 80 }, () => rpc('CreateWatcher', { path: 'watched' })),
    )
    expect(made.filter(({ watcherId }) => watcherId !== undefined)).toHaveLength(64)
    expect(made.find(({ code }) => code)).toMatchObject({ message: expect.stringMatching(/64 watchers/) })
    for (const { watcherId } of made) if (watcherId) await rpc('RemoveWatcher', { watcherId })
    expect((await rpc('CreateWatcher', { path: 'nowhere' })).code).toBe('not_found')
  })

  test('events that wait for a client have a limit by their size', async () => {
    const name = `deep/${Array.from({ length: 15 }, () => 'd'.repeat(250)).join('/')}`
    await sandbox.commands.run(`mkdir -p ${name}`)
    const { watcherId } = await rpc('CreateWatcher', { path: 'deep', recursive: true })
    await sandbox.commands.run(`cd ${name}; seq 2000 | xargs touch; sleep 1`)
    const { events } = await rpc('GetWatcherEvents', { watcherId })
    expect(events.length).toBeGreaterThan(500)
    expect(JSON.stringify(events).length).toBeLessThan(5e6)
  })
})

describe('a sandbox that has ended', () => {
  test('is reported by E2B’s status code and message', async () => {
    const one = await e2b.Sandbox.create(here.options)
    const host = one.getHost(3000)
    const closed = await get(here.options.apiUrl, host)
    expect([closed.status, JSON.parse(closed.text).sandboxId]).toEqual([502, one.sandboxId])
    await one.kill()
    const gone = await get(here.options.apiUrl, host)
    expect([gone.status, JSON.parse(gone.text)]).toEqual([
      502,
      { sandboxId: one.sandboxId, message: 'The sandbox was not found', code: 502 },
    ])
  })

  test('ends a running command with E2B’s error message', async () => {
    const one = await e2b.Sandbox.create(here.options)
    const running = await one.commands.run('sleep 60', { background: true })
    await one.kill()
    const error = await running.wait().catch((thrown: Loose) => thrown)
    expect(error).toBeInstanceOf(e2b.TimeoutError)
    expect(error.message).toContain('sandbox was killed or reached its end of life')
  })
})

describe('timestamps', () => {
  test('`startedAfter` is inclusive', async () => {
    const { startedAt } = await sandbox.getInfo()
    const from = async (ms: number): Promise<string[]> => {
      const query = { startedAfter: new Date(startedAt.getTime() + ms) }
      const items = await e2b.Sandbox.list({ ...here.options, query }).nextItems()
      return items.map(({ sandboxId }: Loose) => sandboxId)
    }
    expect(await from(0)).toContain(sandbox.sandboxId)
    expect(await from(1)).not.toContain(sandbox.sandboxId)
  })

  test('connecting never shortens the timeout', async () => {
    const { endAt } = await sandbox.getInfo()
    for (const timeoutMs of [1000, 2000, 3000])
      await e2b.Sandbox.connect(sandbox.sandboxId, { ...here.options, timeoutMs })
    expect((await sandbox.getInfo()).endAt).toEqual(endAt)
    await e2b.Sandbox.connect(sandbox.sandboxId, { ...here.options, timeoutMs: 3_600_000 })
    expect((await sandbox.getInfo()).endAt.getTime()).toBeGreaterThan(endAt.getTime())
  })
})

describe('private ports', () => {
  test('are forbidden without their token and with a wrong one', async () => {
    const one = await e2b.Sandbox.create({ ...here.options, network: { allowPublicTraffic: false } })
    await one.files.write('s.cjs', 'require("http").createServer((q, s) => s.end("in")).listen(3000)')
    await one.commands.run('node s.cjs', { background: true, timeoutMs: 0 })
    const ask = (headers = {}) => get(here.options.apiUrl, one.getHost(3000), headers)
    const token = { 'e2b-traffic-access-token': one.trafficAccessToken }
    await until(async () => (await ask(token)).text === 'in', 'the server')
    const bare = await ask()
    expect([bare.status, JSON.parse(bare.text).code]).toEqual([403, 403])
    expect((await ask({ 'e2b-traffic-access-token': `${one.trafficAccessToken}0` })).status).toBe(403)
    expect((await ask({ 'x-api-key': `e2b_${'0'.repeat(40)}` })).status).toBe(401)
    await one.kill()
  })
})

describe('metrics', () => {
  test('cover the requested period and include the disk', async () => {
    const one = await e2b.Sandbox.create(here.options)
    const start = new Date()
    await one.commands.run('head -c 3000000 /dev/zero > big; for i in $(seq 20000); do :; done')
    const [figure, ...more] = await one.getMetrics({ start, end: new Date() })
    expect(more).toEqual([])
    expect(figure.diskUsed).toBeGreaterThan(2_900_000)
    expect(figure.diskTotal).toBeGreaterThan(figure.diskUsed)
    expect(figure.memUsed).toBeGreaterThan(100_000)
    expect(figure.cpuUsedPct).toBeGreaterThan(0)
    const before = (minutes: number): Date => new Date(start.getTime() - minutes * 60_000)
    expect(await one.getMetrics({ start: before(60), end: before(30) })).toEqual([])
    expect(await one.getMetrics()).toHaveLength(1)
    const wrong = await fetch(`${here.options.apiUrl}/sandboxes/${one.sandboxId}/metrics?start=soon`, {
      headers: { 'x-api-key': here.options.apiKey },
    })
    expect(wrong.status).toBe(400)
    await one.kill()
  })
})

describe('programs in a sandbox', () => {
  test('`python` is available, after all system programs in PATH', async () => {
    expect((await sandbox.commands.run('python -c "print(6 * 7)"')).stdout).toBe('42\n')
    const { stdout } = await sandbox.commands.run('echo "$PATH"')
    expect(stdout).toMatch(/:\/home\/user\/\.local\/bin\n$/)
  })

  test('`python` is available in a snapshot too', async () => {
    const { snapshotId } = await sandbox.createSnapshot()
    const copy = await e2b.Sandbox.create(snapshotId, here.options)
    expect((await copy.commands.run('python -c "print(1)"')).stdout).toBe('1\n')
    await copy.kill()
  })
})

describe('template tags', () => {
  const build = (name: string, text: string): Promise<Loose> =>
    e2b.Template.build(e2b.Template().fromBaseImage().runCmd(`echo ${text} > said`), name, here.options)
  const said = async (name: string): Promise<string> => {
    const one = await e2b.Sandbox.create(name, here.options)
    const text = await one.files.read('said')
    await one.kill()
    return text.trim()
  }
  const tags = async (name: string): Promise<string[]> =>
    (await e2b.Template.getTags(name, here.options)).map(({ tag }: Loose) => tag).sort()

  test('point to one build at a time', async () => {
    const first = await build('tagged:v1', 'one')
    await build('tagged:v2', 'two')
    const given = await e2b.Template.assignTags('tagged:v1', ['stable', 'latest'], here.options)
    expect(given.tags).toEqual(['stable', 'latest'])
    expect(await said('tagged:stable')).toBe('one')
    await e2b.Template.assignTags('tagged:v2', 'stable', here.options)
    expect([await said('tagged:stable'), await said('tagged:latest'), await said('tagged:v1')]).toEqual([
      'two',
      'one',
      'one',
    ])
    expect(await tags(first.templateId)).toEqual(['latest', 'stable', 'v1', 'v2'])
    await e2b.Template.removeTags('tagged', ['latest'], here.options)
    expect(await tags('tagged')).toEqual(['stable', 'v1', 'v2'])
    await expect(said('tagged:latest')).rejects.toThrow(/no template/)
    for (const wrong of [':bad', 'a:b', ''])
      await expect(e2b.Template.assignTags('tagged:v1', wrong, here.options)).rejects.toThrow()
    await expect(e2b.Template.assignTags('tagged:', 'x', here.options)).rejects.toThrow()
    const stranger = { ...here.options, apiKey: await here.key('stranger') }
    await expect(e2b.Template.assignTags('tagged:v1', 'x', stranger)).rejects.toThrow(/no template/)
    await expect(e2b.Template.getTags('tagged', stranger)).rejects.toThrow(/no template/)
  })
})
