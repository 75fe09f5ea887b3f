import { createHmac } from 'node:crypto'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ClusterKey } from '../../src/cluster/identity.ts'
import { type RunningServer, startServer } from '../../src/compose/serve.ts'
import { openStore } from '../../src/store/open.ts'
import { backup } from '../../src/supervisor/backup/backup.ts'
import { restore } from '../../src/supervisor/backup/restore.ts'
import { WebhookSecrets } from '../../src/supervisor/telemetry/webhook-secrets.ts'
import { hasPostgres, type Postgres, startPostgres } from './postgres.ts'

/** Webhook secrets in the database's own files, on real stores. */

const base = mkdtempSync(join(tmpdir(), 'rf-webhook-secrets-'))
const config = join(base, 'ringfence.toml')
writeFileSync(config, '[network]\nallow_private = ["127.0.0.0/8"]\n')
const receiver = createServer((request, response) => {
  let body = ''
  request.on('data', (chunk) => (body += chunk))
  request.on('end', () => {
    const signed = `${request.headers['webhook-id']}.${request.headers['webhook-timestamp']}.${body}`
    got.push({ signed, signature: String(request.headers['webhook-signature']) })
    response.end()
  })
})
const got: { readonly signed: string; readonly signature: string }[] = []
let postgres: Postgres | undefined
let hookUrl = ''

beforeAll(async () => {
  await new Promise<void>((resolve) => receiver.listen(0, '127.0.0.1', resolve))
  hookUrl = `http://127.0.0.1:${(receiver.address() as AddressInfo).port}/`
  if (hasPostgres) postgres = await startPostgres()
}, 60_000)
afterAll(async () => {
  receiver.close()
  await postgres?.stop()
  rmSync(base, { recursive: true, force: true })
})

type At = { readonly state: string; readonly databaseUrl: string; readonly files: string }

const started = (at: At, log?: (line: string) => void): Promise<RunningServer> =>
  startServer({
    port: 0,
    env: { PATH: process.env.PATH, HOME: base, RINGFENCE_HOME: at.state },
    cwd: base,
    config,
    databaseUrl: at.databaseUrl,
    ...(log ? { log } : {}),
  })

const operator = (server: RunningServer) =>
  server.parts.keys
    .create({ scopes: ['create', 'exec', 'read', 'admin'] })
    .then(({ secret }) => server.parts.keys.principalOf(secret))

async function created(server: RunningServer, url = hookUrl) {
  const principal = await operator(server)
  if (!principal) throw new Error('no key')
  return server.parts.webhooks.create(principal, { url, events: ['SandboxState'] })
}

/** The files below a directory that contain a text. */
const containing = (directory: string, needle: string): string[] =>
  readdirSync(directory, { recursive: true, encoding: 'utf8' }).filter((name) => {
    const path = join(directory, name)
    return statSync(path, { throwIfNoEntry: false })?.isFile() && readFileSync(path).includes(needle)
  })

/** A record of the audit log for the webhook, and whether its delivery was signed with the secret. */
async function delivers(server: RunningServer, secret: string): Promise<void> {
  await server.trail.append({ event: 'SandboxState', state: 'destroyed' })
  const isSigned = (): boolean =>
    got.some(
      ({ signed, signature }) =>
        signature === `v1,${createHmac('sha256', secret).update(signed).digest('base64')}`,
    )
  await expect.poll(isSigned, { timeout: 10_000 }).toBe(true)
}

/** What a version without encryption left: rows that were rewritten now and then, with the secret in plain text. */
async function plant(at: At, id: string, secret: string): Promise<void> {
  const store = await openStore({ stateDir: at.state, databaseUrl: at.databaseUrl })
  for (const position of [0, 300, 70_000])
    await store.write((tx) =>
      tx.run('UPDATE webhooks SET secret = ?, position = position + ? WHERE id = ?', [secret, position, id]),
    )
  await store.write((tx) => tx.run('UPDATE webhooks SET position = -1, failures = 0 WHERE id = ?', [id]))
  await store.close()
}

describe.each(['sqlite', ...(hasPostgres ? ['postgres'] : [])])('webhook secrets on %s', (kind) => {
  const at = (name: string): At => {
    const state = join(base, `${kind}-${name}`)
    if (!postgres || kind === 'sqlite') return { state, databaseUrl: '', files: state }
    const databaseUrl = postgres.fresh(name)
    const dir = decodeURIComponent(/host=(.+)$/.exec(databaseUrl)?.[1] ?? '')
    return { state, databaseUrl, files: join(dir, 'data') }
  }

  test('are never stored in plain text, and sign deliveries also after a restart', async () => {
    const one = at('fresh')
    const first = await started(one)
    const { id, secret } = await created(first)
    expect(secret).toMatch(/^whsec_[0-9a-f]{48}$/)
    expect(containing(one.files, secret)).toEqual([])
    expect(containing(one.files, 'sealed:1:')).not.toEqual([])
    await delivers(first, secret)
    await first.close()
    expect(containing(one.files, secret)).toEqual([])
    expect(statSync(join(one.state, 'webhook-secrets.key')).mode & 0o777).toBe(0o600)
    const again = await started(one)
    got.length = 0
    await delivers(again, secret)
    expect((await again.store.read('SELECT id FROM webhooks')).map((row) => row.id)).toEqual([id])
    await again.close()
  }, 60_000)

  test('of an older version are encrypted at start, and no plain text stays in the tables', async () => {
    const one = at('older')
    const first = await started(one)
    const { id } = await created(first)
    await first.close()
    const secret = `whsec_${'0123456789abcdef'.repeat(3)}`
    await plant(one, id, secret)
    const tables = kind === 'sqlite' ? one.files : join(one.files, 'base')
    const server = await started(one)
    if (kind === 'postgres') await server.store.read('CHECKPOINT')
    expect(containing(tables, secret)).toEqual([])
    got.length = 0
    await delivers(server, secret)
    await server.close()
  }, 60_000)

  test('are encrypted in a backup together with their key; the restored server signs with the same secret', async () => {
    const one = at('kept')
    const first = await started(one)
    const { secret } = await created(first)
    await first.close()
    const file = join(base, `${kind}.tar.gz`)
    await backup({ stateDir: one.state, databaseUrl: one.databaseUrl, file, version: '0' })
    const other = at('restored')
    await restore({ file, stateDir: other.state, databaseUrl: other.databaseUrl, force: false })
    const server = await started(other)
    expect(containing(other.state, secret)).toEqual([])
    got.length = 0
    await delivers(server, secret)
    await server.close()
  }, 60_000)
})

test('a secret without its encryption key is not used, and the server names the webhook', async () => {
  const one = { state: join(base, 'lost'), databaseUrl: '', files: join(base, 'lost') }
  const first = await started(one)
  const { id } = await created(first)
  await first.close()
  rmSync(join(one.state, 'webhook-secrets.key'))
  const said: string[] = []
  const server = await started(one, (line) => said.push(line))
  expect(said.join('\n')).toContain(`the secret of the webhook \`${id}\` cannot be decrypted`)
  got.length = 0
  await server.trail.append({ event: 'SandboxState', state: 'destroyed' })
  const failures = async () =>
    (await server.store.read('SELECT failures FROM webhooks WHERE id = ?', [id]))[0]?.failures
  await expect.poll(failures).toBeGreaterThan(0)
  expect(got).toEqual([])
  await server.close()
}, 60_000)

test('an encrypted secret is bound to its webhook, tamper-proof, and readable with the current or an earlier key', () => {
  const key = ClusterKey.create().derive('one')
  const secrets = new WebhookSecrets(key)
  const storedSecret = secrets.seal('wh_a', 'whsec_x')
  expect(secrets.open({ id: 'wh_a', storedSecret })).toBe('whsec_x')
  expect(secrets.seal('wh_a', 'whsec_x')).not.toBe(storedSecret)
  expect(() => secrets.open({ id: 'wh_b', storedSecret })).toThrow('cannot be decrypted')
  for (const bad of ['whsec_x', 'sealed:1:', 'sealed:1:AAAA', `${storedSecret.slice(0, -8)}AAAAAAA=`])
    expect(() => secrets.open({ id: 'wh_a', storedSecret: bad }), bad).toThrow('cannot be decrypted')
  const rotated = new WebhookSecrets(ClusterKey.create().derive('one'), [key])
  expect(rotated.isOutdated({ id: 'wh_a', storedSecret })).toBe(true)
  expect(rotated.open({ id: 'wh_a', storedSecret })).toBe('whsec_x')
})

test('a server that joins or leaves a cluster keeps its webhook secrets', async () => {
  const { webhookSecretsOf } = await import('../../src/compose/server-secrets.ts')
  const stateDir = mkdtempSync(join(base, 'joins-'))
  const ringfence = { config: {}, stateDir } as never
  const alone = webhookSecretsOf(ringfence, undefined)
  const stored = { id: 'wh_a', storedSecret: alone.seal('wh_a', 'whsec_x') }
  const key = ClusterKey.create()
  key.save(join(stateDir, 'cluster.key'))
  const member = webhookSecretsOf(ringfence, { key } as never)
  expect([member.isOutdated(stored), member.open(stored)]).toEqual([true, 'whsec_x'])
  const shared = { id: 'wh_a', storedSecret: member.seal('wh_a', 'whsec_x') }
  const left = webhookSecretsOf(ringfence, undefined)
  expect([left.isOutdated(shared), left.open(shared)]).toEqual([true, 'whsec_x'])
  const otherNode = webhookSecretsOf(
    { config: {}, stateDir: mkdtempSync(join(base, 'node-')) } as never,
    {
      key,
    } as never,
  )
  expect(otherNode.open(shared)).toBe('whsec_x')
  expect(existsSync(join(stateDir, 'webhook-secrets.key'))).toBe(true)
})
