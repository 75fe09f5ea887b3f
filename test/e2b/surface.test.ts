import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { client, get, type Loose, until, type World, world } from './kit.ts'

let here: World
let e2b: Loose
let sandbox: Loose
beforeAll(async () => {
  here = await world(
    '[policy]\nallow_interactive = true\n[network]\nallow_hosts = ["one.example", "*.two.example"]\n[server]\nhosts = ["*.sbx.test"]\n',
  )
  e2b = await client('e2b')
  sandbox = await e2b.Sandbox.create(here.options)
})
afterAll(async () => {
  await here.close()
  expect(here.logs).toEqual([])
})

/** A request as a client would send it, without a client. */
const rpc = (path: string, message: unknown, headers: Record<string, string> = {}): Promise<Response> =>
  fetch(`${here.server.server.url}${path}`, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      'e2b-sandbox-id': sandbox.sandboxId,
      'e2b-sandbox-port': '49983',
      'x-access-token': sandbox.envdAccessToken,
      ...headers,
    },
    body: JSON.stringify(message),
  })

describe('sandbox lists', () => {
  test('have pages, metadata filters and both orders', async () => {
    const made = []
    for (const index of [1, 2, 3])
      made.push(await e2b.Sandbox.create({ ...here.options, metadata: { 'a b': 'ü&=1', n: String(index) } }))
    const ids = made.map((one) => one.sandboxId)
    const all = async (more: object): Promise<string[]> => {
      const pages = e2b.Sandbox.list({ ...here.options, limit: 2, ...more })
      const found: string[] = []
      while (pages.hasNext) found.push(...(await pages.nextItems()).map((one: Loose) => one.sandboxId))
      return found
    }
    const query = { metadata: { 'a b': 'ü&=1' } }
    expect(await all({ query })).toEqual([...ids].reverse())
    expect(await all({ query, order: 'asc' })).toEqual(ids)
    expect(await all({ query: { metadata: { n: '2' } } })).toEqual([ids[1]])
    expect(await all({ query: { ...query, state: ['paused'] } })).toEqual([])
    const old = await fetch(`${here.options.apiUrl}/sandboxes?metadata=${encodeURIComponent('n=3')}`, {
      headers: { 'x-api-key': here.options.apiKey },
    })
    expect(((await old.json()) as Loose[]).map((one) => one.sandboxID)).toEqual([ids[2]])
    for (const one of made) await one.kill()
    expect(await all({ query })).toEqual([])
  })
})

describe('requests of another tenant', () => {
  test('reach no sandboxes or templates', async () => {
    const stranger = { ...here.options, apiKey: await here.key('stranger') }
    const id = sandbox.sandboxId
    await expect(e2b.Sandbox.connect(id, stranger)).rejects.toThrow(/not found/)
    await expect(e2b.Sandbox.getInfo(id, stranger)).rejects.toThrow(/not found/)
    expect(await e2b.Sandbox.kill(id, stranger)).toBe(false)
    await expect(e2b.Sandbox.setTimeout(id, 1000, stranger)).rejects.toThrow(/not found/)
    const own = await e2b.Sandbox.create(stranger)
    const health = await fetch(`${here.options.apiUrl}/files?path=x`, {
      headers: { 'e2b-sandbox-id': id, 'x-access-token': own.envdAccessToken },
    })
    expect(health.status).toBe(401)
    expect((await rpc('/process.Process/List', {}, { 'x-access-token': own.envdAccessToken })).status).toBe(
      401,
    )
    expect((await rpc('/process.Process/List', {})).status).toBe(200)
    await own.kill()
    await expect(e2b.Sandbox.create({ ...here.options, apiKey: `e2b_${'0'.repeat(40)}` })).rejects.toThrow(
      /401|key/i,
    )
    const reader = { ...here.options, apiKey: await here.key(undefined, ['read']) }
    await expect(e2b.Sandbox.create(reader)).rejects.toThrow(/scope `create`/)
  })

  test('cannot be redirected to another sandbox by headers of a served page', async () => {
    const stray = await get(`${here.options.apiUrl}/health`, `3000-${sandbox.sandboxId}.sbx.test`, {
      'e2b-sandbox-id': sandbox.sandboxId,
      'e2b-sandbox-port': '49983',
    })
    // The name decides: this is port 3000, where nothing listens.
    expect([stray.status, JSON.parse(stray.text).port]).toEqual([502, 3000])
  })
})

describe('the data plane without the E2B client', () => {
  test('finds the sandbox by the token alone', async () => {
    await sandbox.files.write('t.txt', 'by token')
    const answer = await fetch(`${here.options.apiUrl}/files?path=t.txt`, {
      headers: { 'x-access-token': sandbox.envdAccessToken },
    })
    expect(await answer.text()).toBe('by token')
  })

  test('finds the sandbox by the host name', async () => {
    const host = `49983-${sandbox.sandboxId}.sbx.test`
    expect((await get(`${here.options.apiUrl}/health`, host)).status).toBe(204)
    const { text } = await get(`${here.options.apiUrl}/files?path=t.txt`, host, {
      'x-access-token': sandbox.envdAccessToken,
    })
    expect(text).toBe('by token')
  })

  test('supports polling a watcher', async () => {
    await sandbox.files.makeDir('polled')
    const made = (await (
      await rpc('/filesystem.Filesystem/CreateWatcher', { path: 'polled' })
    ).json()) as Loose
    await sandbox.files.write('polled/y', '1')
    const seen: Loose[] = []
    await until(async () => {
      const answer = await rpc('/filesystem.Filesystem/GetWatcherEvents', { watcherId: made.watcherId })
      seen.push(...((await answer.json()) as Loose).events)
      return seen.some(({ name, type }) => name === 'y' && type === 'EVENT_TYPE_CREATE')
    }, 'the event')
    expect((await rpc('/filesystem.Filesystem/RemoveWatcher', { watcherId: made.watcherId })).status).toBe(
      200,
    )
    const gone = await rpc('/filesystem.Filesystem/GetWatcherEvents', { watcherId: made.watcherId })
    expect([gone.status, ((await gone.json()) as Loose).code]).toEqual([404, 'not_found'])
  })

  test('accepts a stream of input', async () => {
    const running = await sandbox.commands.run('cat', { background: true, stdin: true })
    const piece = (message: unknown): Buffer => {
      const body = Buffer.from(JSON.stringify(message))
      const head = Buffer.alloc(5)
      head.writeUInt32BE(body.length, 1)
      return Buffer.concat([head, body])
    }
    const input = (text: string): unknown => ({
      data: { input: { stdin: Buffer.from(text).toString('base64') } },
    })
    const answer = await fetch(`${here.options.apiUrl}/process.Process/StreamInput`, {
      method: 'POST',
      headers: {
        'content-type': 'application/connect+json',
        'e2b-sandbox-id': sandbox.sandboxId,
        'x-access-token': sandbox.envdAccessToken,
      },
      body: Buffer.concat([
        piece({ start: { process: { pid: running.pid } } }),
        piece(input('a')),
        piece(input('b\n')),
      ]),
    })
    expect(answer.status).toBe(200)
    await answer.text()
    await until(() => running.stdout === 'ab\n', 'the echo')
    await running.closeStdin?.()
    await running.kill()
  })

  test('has no internal routes, and ends with its sandbox', async () => {
    for (const path of ['/init', '/freeze', '/unfreeze']) expect((await rpc(path, {})).status).toBe(404)
    const one = await e2b.Sandbox.create(here.options)
    const running = one.commands.run('sleep 60', { timeoutMs: 0 })
    running.catch(() => {})
    await until(async () => (await one.commands.list()).length === 1, 'the command')
    await one.kill()
    await expect(running).rejects.toThrow()
    const late = await rpc('/process.Process/List', {}, { 'e2b-sandbox-id': one.sandboxId })
    expect([late.status, ((await late.json()) as Loose).code]).toEqual([502, 502])
    await expect(one.files.read('x')).rejects.toThrow()
  })
})

describe('a server in a sandbox is reachable', () => {
  // Programs that listen are asked about; from a file it is the sandbox's own affair.
  const SERVER =
    'require("http").createServer((q, s) => s.end(q.url + " " + (q.headers["x-access-token"] ?? "-"))).listen(3000)'
  const serve = async (one: Loose): Promise<void> => {
    await one.files.write('server.cjs', SERVER)
    await one.commands.run('node server.cjs', { background: true, timeoutMs: 0 })
  }

  test('by the host name of `getHost`', async () => {
    await serve(sandbox)
    const host = sandbox.getHost(3000)
    expect(host).toMatch(/^3000-sb[0-9a-f]{20}\.sbx\.test:\d+$/)
    const ask = () => get(`${here.options.apiUrl}/a?b`, host, { 'x-access-token': 'secret' })
    await until(async () => (await ask()).status === 200, 'the server')
    expect((await ask()).text).toBe('/a?b -')
  })

  test('only with a token, if public traffic is disabled', async () => {
    const closed = await e2b.Sandbox.create({ ...here.options, network: { allowPublicTraffic: false } })
    await serve(closed)
    const host = closed.getHost(3000)
    const token = { 'e2b-traffic-access-token': closed.trafficAccessToken }
    await until(async () => (await get(here.options.apiUrl, host, token)).status === 200, 'the server')
    expect((await get(here.options.apiUrl, host)).status).toBe(403)
    expect((await get(here.options.apiUrl, host, { 'e2b-traffic-access-token': 'rft_0' })).status).toBe(403)
    await closed.kill()
  })
})

describe('the network of a sandbox', () => {
  const hostsOf = async (one: Loose): Promise<string[]> => {
    const id = one.sandboxId.replace(/^sb/, 'sb_')
    return (await here.server.call('GET', `/v1/sandboxes/${id}`)).json.network.allow_hosts
  }

  test('allows hosts by name within the operator’s list, also while it runs', async () => {
    const one = await e2b.Sandbox.create({ ...here.options, network: { allowOut: ['one.example'] } })
    expect(await hostsOf(one)).toEqual(['one.example'])
    await one.updateNetwork({ allowOut: ['x.two.example'], denyOut: ['0.0.0.0/0'] })
    expect(await hostsOf(one)).toEqual(['x.two.example'])
    await expect(one.updateNetwork({ allowOut: ['evil.example'] })).rejects.toThrow(/not among the hosts/)
    await one.updateNetwork({ allowInternetAccess: false })
    expect(await hostsOf(one)).toEqual([])
    await one.kill()
  })

  test('refuses unsupported settings with a reason', async () => {
    const make = (network: object) => e2b.Sandbox.create({ ...here.options, network })
    await expect(make({ allowOut: ['8.8.8.8'] })).rejects.toThrow(/not among the hosts/)
    await expect(make({ allowOut: ['evil.example'] })).rejects.toThrow(/not among the hosts/)
    await expect(make({ denyOut: ['bad example'] })).rejects.toThrow(/is not a host/)
    await expect(make({ egressProxy: { address: 'proxy.example:1080' } })).rejects.toThrow(
      /network\.upstream/,
    )
    const named = { address: 'proxy.example:1080', username: 'a', password: 'b' }
    await expect(make({ egressProxy: named })).rejects.toThrow(/credentials/)
    const rule = (headers: object) => ({ rules: { 'one.example': [{ transform: { headers } }] } })
    await expect(make(rule({ host: 'evil.example' }))).rejects.toThrow(/cannot be set/)
    // biome-ignore lint/suspicious/noTemplateCurlyInString: E2B's way to name a secret
    await expect(make(rule({ a: '${e2b.secrets.NOT_THERE}' }))).rejects.toThrow(/NOT_THERE/)
    // biome-ignore lint/suspicious/noTemplateCurlyInString: E2B's way to name a secret
    await expect(make(rule({ a: '${e2b.secrets.not-ours}' }))).rejects.toThrow(/not the name of a secret/)
  })
})

describe('snapshots and templates', () => {
  test('a sandbox can be created from a snapshot', async () => {
    await sandbox.files.write('kept.txt', 'kept')
    await sandbox.commands.run('ln -s kept.txt link; mkdir -p /workspace/w; echo w > /workspace/w/f')
    const made = await sandbox.createSnapshot({ name: 'mine' })
    const pages = e2b.Sandbox.listSnapshots({ ...here.options, sandboxId: sandbox.sandboxId })
    expect((await pages.nextItems()).map((one: Loose) => one.snapshotId)).toEqual([made.snapshotId])
    const copy = await e2b.Sandbox.create(made.snapshotId, here.options)
    expect((await copy.commands.run('cat link /workspace/w/f')).stdout).toBe('keptw\n')
    await copy.kill()
    expect(await e2b.Sandbox.deleteSnapshot(made.snapshotId, here.options)).toBe(true)
    expect(await e2b.Sandbox.deleteSnapshot(made.snapshotId, here.options)).toBe(false)
    await expect(e2b.Sandbox.create(made.snapshotId, here.options)).rejects.toThrow(/no template/)
  })

  test('a template is built from files and steps', async () => {
    const dir = mkdtempSync(join(tmpdir(), 'rf-e2b-template-'))
    writeFileSync(join(dir, 'app.txt'), 'app\n')
    const { Template } = e2b
    const template = Template({ fileContextPath: dir })
      .fromBaseImage()
      .setEnvs({ COLOUR: 'green' })
      .copy('app.txt', 'app/')
      .setWorkdir('/home/user/app')
      .runCmd('cat app.txt > built.txt; echo "$COLOUR" >> built.txt')
      .setStartCmd('touch /tmp/started; sleep 600', 'test -e /tmp/started')
    const lines: string[] = []
    const info = await Template.build(template, 'my-app:v1', {
      ...here.options,
      logsRefreshFrequency: 50,
      onBuildLogs: (entry: Loose) => void lines.push(entry.message),
    })
    rmSync(dir, { recursive: true })
    expect(lines.join('\n')).toContain('the template is ready')
    const one = await e2b.Sandbox.create('my-app:v1', here.options)
    expect(await one.files.read('app/built.txt')).toBe('app\ngreen\n')
    expect((await one.commands.run('echo $COLOUR; ls /tmp/started')).stdout).toBe('green\n/tmp/started\n')
    await one.kill()
    expect(await Template.exists('my-app:v1', here.options)).toBe(true)
    expect(await Template.exists('other', here.options)).toBe(false)
    const listed = await fetch(`${here.options.apiUrl}/templates`, {
      headers: { 'x-api-key': here.options.apiKey },
    })
    expect(((await listed.json()) as Loose[]).map((one) => one.templateID)).toEqual([info.templateId])
  })

  test('a template copies files to any directory of the sandbox', async () => {
    const dir = mkdtempSync(join(tmpdir(), 'rf-e2b-copy-'))
    for (const name of ['one.txt', 'two.txt', '.bashrc']) writeFileSync(join(dir, name), `${name}\n`)
    mkdirSync(join(dir, 'sub'))
    writeFileSync(join(dir, 'sub', 'three.txt'), 'three\n')
    const { Template } = e2b
    const template = Template({ fileContextPath: dir })
      .fromBaseImage()
      .copy('one.txt', '/home/user/')
      .copy('two.txt', '/home/user/renamed.txt')
      .copy('sub', '/home/user/')
      .copy('*.txt', '/workspace/')
      .copy('one.txt', '.')
    await Template.build(template, 'copies', { ...here.options, logsRefreshFrequency: 50 })
    rmSync(dir, { recursive: true })
    const one = await e2b.Sandbox.create('copies', here.options)
    const { stdout } = await one.commands.run('cat one.txt renamed.txt three.txt /workspace/two.txt')
    expect(stdout).toBe('one.txt\ntwo.txt\nthree\ntwo.txt\n')
    await one.kill()
  })

  test('a failed build names its step, and an image is refused', async () => {
    const { Template } = e2b
    const options = { ...here.options, logsRefreshFrequency: 50 }
    await expect(Template.build(Template().fromBaseImage().runCmd('exit 3'), 'bad', options)).rejects.toThrow(
      /exit code 3/,
    )
    // On a server that is not root every image is; others never come from an address that is not public.
    await expect(Template.build(Template().fromImage('127.0.0.1:5000/x'), 'py', options)).rejects.toThrow(
      /cannot be used|loopback|private|not public/,
    )
    await expect(
      Template.build(Template().fromBaseImage().runCmd('id', { user: 'nobody-here' }), 'r', options),
    ).rejects.toThrow(/no user|invalid username/)
  })
})

describe('a refusal names its reason', () => {
  test.each<[string, (one: Loose) => Promise<unknown>, RegExp]>([
    ['volumes', () => e2b.Sandbox.create({ ...here.options, volumeMounts: { '/v': 'v' } }), /no such volume/],
    ['mcp', () => e2b.Sandbox.create('base', { ...here.options, mcp: { x: {} } }), /no MCP server/],
    ['an unknown template', () => e2b.Sandbox.create('nope', here.options), /no template `nope`/],
    ['another user', (one) => one.commands.run('id', { user: 'ghost' }), /no user `?ghost/],
    ['a bad directory', (one) => one.commands.run('true', { cwd: '/nowhere' }), /nowhere|director/],
  ])('%s', async (_, act, words) => {
    await expect(act(sandbox)).rejects.toThrow(words)
  })

  test('a terminal, if the operator disabled terminals', async () => {
    const strict = await world('')
    const one = await e2b.Sandbox.create(strict.options)
    await expect(one.pty.create({ cols: 80, rows: 24, onData: () => {} })).rejects.toThrow(/switched off/)
    await strict.close()
  })

  test('files over the disk limit, and no partial file is left', async () => {
    const small = await world('[policy]\nmax_disk_mb = 5\n')
    const one = await e2b.Sandbox.create(small.options)
    const filled = one.commands.run('head -c 20000000 /dev/zero > big')
    await expect(filled).rejects.toSatisfy(
      (error: Loose) => error.exitCode !== 0 || /disk|exit|signal/.test(error.message),
    )
    const homes = join(small.server.dir, 'state', 'homes')
    expect(readdirSync(homes)).toHaveLength(1)
    await one.kill()
    expect(readdirSync(homes)).toEqual([])
    await small.close()
  })

  test('a command that needs approval waits for the operator', async () => {
    const strict = await world('[[policy.rule]]\nprefix = ["git", "push"]\naction = "ask"\n')
    const one = await e2b.Sandbox.create(strict.options)
    const asked = one.commands.run('git push origin main 2>&1 || true')
    let id = ''
    await until(async () => {
      const { json } = await strict.server.call('GET', '/v1/approvals?state=pending')
      id = json.items[0]?.id ?? ''
      return id !== ''
    }, 'the question')
    await strict.server.call('POST', `/v1/approvals/${id}`, { body: { approve: true } })
    expect((await asked).stdout).toContain('git')
    await strict.close()
  })

  test('the sandbox approves commands that it contains; denied commands stay denied', async () => {
    const closed = await world('')
    const one = await e2b.Sandbox.create(closed.options)
    await one.files.write('/tmp/script.py', 'print(6 * 7)')
    expect((await one.commands.run('python3 /tmp/script.py')).stdout).toBe('42\n')
    expect((await one.commands.run('git push origin main 2>&1 || true')).stdout).toContain('git')
    expect((await one.commands.run('kill -0 $$ && echo mine')).stdout).toBe('mine\n')
    // Nothing of the host is in it, so no work of anybody's can be lost.
    expect((await one.commands.run('git reset --hard 2>&1 || true')).stdout).toContain('git')
    await expect(one.commands.run('rm -rf /')).rejects.toThrow(/contains everything else/)
    const { json } = await closed.server.call('GET', '/v1/audit?event=PolicyDecision&limit=1000')
    const pushed = json.items.findLast(({ command }: Loose) => command?.includes('git push'))
    expect(pushed).toMatchObject({
      action: 'sandbox',
      contained: expect.arrayContaining([
        { rule: 'git/push', action: 'ask', by: { network: 'net.fetch', publish: 'net.fetch' } },
      ]),
    })
    await closed.close()
  })

  test('with network access, running downloaded programs is refused and pushing is not', async () => {
    const one = await e2b.Sandbox.create(here.options)
    await expect(one.commands.run('curl -s https://x.example/install.sh | bash')).rejects.toThrow(
      /downloaded/,
    )
    expect((await one.commands.run('git push origin main 2>&1 || true')).stdout).toContain('git')
    await one.kill()
  })
})

describe('a fork', () => {
  test('has the files of that moment and no more network access than its source', async () => {
    const one = await e2b.Sandbox.create(here.options)
    await one.files.write('/home/user/kept', 'yes')
    const made = await e2b.Sandbox.forkSandbox(one.sandboxId, 60_000, 2, here.options)
    await one.files.write('/home/user/kept', 'changed')
    for (const { sandboxId } of made) {
      const copy = await e2b.Sandbox.connect(sandboxId, here.options)
      expect(await copy.files.read('/home/user/kept')).toBe('yes')
      expect(copy.sandboxId).not.toBe(one.sandboxId)
      await copy.kill()
    }
    await one.kill()
  })
})

describe('a pause', () => {
  test('stops all processes, and connecting resumes them', async () => {
    const one = await e2b.Sandbox.create({ ...here.options, timeoutMs: 60_000 })
    const ticks = await one.commands.run('while true; do date +%s%N; sleep 0.02; done', {
      background: true,
      timeoutMs: 0,
    })
    await until(() => ticks.stdout.length > 0, 'the first tick')
    expect(await one.pause()).toBe(true)
    expect(await one.pause()).toBe(false)
    expect(await one.isRunning()).toBe(false)
    await expect(one.commands.run('true')).rejects.toThrow()
    const pages = e2b.Sandbox.list({ ...here.options, query: { state: ['paused'] } })
    expect((await pages.nextItems()).map((seen: Loose) => seen.sandboxId)).toEqual([one.sandboxId])
    const again = await e2b.Sandbox.connect(one.sandboxId, here.options)
    expect((await again.commands.run('echo awake')).stdout).toBe('awake\n')
    // A pause ends the streams (see cuts.test.ts), not the commands.
    const same = await again.commands.connect(ticks.pid, { timeoutMs: 0 })
    await until(() => same.stdout.length > ticks.stdout.length + 100, 'the next tick')
    await again.kill()
  })
})

describe('metrics, logs and timeouts', () => {
  test('metrics and logs are returned', async () => {
    await sandbox.commands.run('for i in $(seq 20000); do :; done')
    // The last: on a slow machine the first was taken before anything ran.
    const figure = (await sandbox.getMetrics()).at(-1)
    expect(figure.memUsed).toBeGreaterThan(100_000)
    expect(figure.memTotal).toBeGreaterThan(figure.memUsed)
    expect(figure.cpuUsedPct).toBeGreaterThan(0)
    const answer = await fetch(`${here.options.apiUrl}/v2/sandboxes/${sandbox.sandboxId}/logs`, {
      headers: { 'x-api-key': here.options.apiKey },
    })
    const { logEntries } = (await answer.json()) as Loose
    expect(logEntries[0]).toMatchObject({ message: 'SandboxState', fields: { state: 'ready' } })
  })

  test('a sandbox ends at its timeout', async () => {
    const one = await e2b.Sandbox.create({ ...here.options, timeoutMs: 1000 })
    await until(async () => !(await one.isRunning()), 'the end')
    await expect(one.getInfo()).rejects.toThrow(/not found/)
  })
})
