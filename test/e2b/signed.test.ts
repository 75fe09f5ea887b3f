import { createHash } from 'node:crypto'
import { type ClientRequest, type IncomingMessage, request } from 'node:http'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { signedSandbox } from '../../src/server/e2b/envd/transfer.ts'
import { BuildLog } from '../../src/server/e2b/templates/builds.ts'
import { startTestServer, type TestServer } from '../server/test-server.ts'

/** What a key gives out (tokens of volumes, signed addresses) ends with the key, and counts for its rate. */

let home: TestServer
beforeAll(async () => {
  home = await startTestServer('[server]\nrequests_per_second = 20\nwrong_keys_per_second = 5\n')
})
afterAll(() => home.close())

type Maker = { readonly id: string; readonly key: string }
let makers = 0
/** A key of a tenant of its own. */
const maker = async (): Promise<Maker> => {
  const body = { scopes: ['create', 'exec', 'read'], tenant: `t${makers++}` }
  return (await home.call('POST', '/v1/keys', { body })).json
}
const revoke = ({ id }: Maker) => home.call('DELETE', `/v1/keys/${id}`)

/** How a client calls one of the three ways in. */
type Way = {
  readonly url: string
  readonly method: 'PUT' | 'POST'
  readonly headers: Readonly<Record<string, string>>
}

async function volume({ key }: Maker): Promise<Way> {
  const made = await home.call('POST', '/volumes', { key, body: { name: 'files' } })
  const headers = { authorization: `Bearer ${made.json.token}` }
  const path = `/volumecontent/${made.json.volumeID}/file?path=/slow&force=true`
  return { url: `${home.server.url}${path}`, method: 'PUT', headers }
}

async function buildFile({ key }: Maker): Promise<Way> {
  const { json } = await home.call('GET', `/templates/any/files/${'a'.repeat(64)}`, { key })
  return { url: json.url, method: 'PUT', headers: {} }
}

type Made = { readonly sandboxID: string; readonly envdAccessToken: string }
const sandbox = async ({ key }: Maker): Promise<Made> =>
  (await home.call('POST', '/sandboxes', { key, body: { templateID: 'base', timeout: 120 } })).json

function signed({ envdAccessToken }: Pick<Made, 'envdAccessToken'>, verb: 'read' | 'write'): string {
  const text = ['/home/user/slow', verb, 'user', envdAccessToken].join(':')
  const signature = `v1_${createHash('sha256').update(text).digest('base64').replace(/=+$/, '')}`
  const query = new URLSearchParams({ path: '/home/user/slow', username: 'user', signature })
  return `${home.server.url}/files?${query}`
}

const signedFile = async (who: Maker): Promise<Way> => ({
  url: signed(await sandbox(who), 'write'),
  method: 'POST',
  headers: { 'content-type': 'application/octet-stream' },
})

const WAYS = [
  ['the token of a volume', volume],
  ['a signed address of a build file', buildFile],
  ['a signed address of a file', signedFile],
] as const

/** An upload that goes on and on. */
function endless({ url, method, headers }: Way): {
  readonly ended: Promise<void>
  readonly stop: () => void
} {
  let asked: ClientRequest | undefined
  let writing: NodeJS.Timeout | undefined
  const ended = new Promise<void>((resolve) => {
    asked = request(url, { method, headers: { ...headers, 'transfer-encoding': 'chunked' } })
    asked.on('error', () => resolve())
    asked.on('close', () => resolve())
    asked.on('response', () => resolve())
    writing = setInterval(() => asked?.write('x'.repeat(1000)), 50)
  })
  const stop = (): void => {
    clearInterval(writing)
    asked?.destroy()
  }
  return { ended: ended.finally(stop), stop }
}

const within = <T>(ms: number, what: Promise<T>): Promise<T | 'late'> =>
  Promise.race([what, new Promise<'late'>((resolve) => setTimeout(() => resolve('late'), ms))])

describe.each(WAYS)('%s', (_, open) => {
  test('ends an upload under way when its key is revoked', async () => {
    const [red, blue] = [await maker(), await maker()]
    const [hers, his] = [endless(await open(red)), endless(await open(blue))]
    expect(await within(1500, Promise.race([hers.ended, his.ended]))).toBe('late')
    await revoke(red)
    expect(await within(3000, hers.ended)).not.toBe('late')
    expect(await within(500, his.ended)).toBe('late')
    his.stop()
  })

  test('counts for the rate of its key', async () => {
    const { url, method, headers } = await open(await maker())
    const ask = async () => (await fetch(url, { method, headers, body: 'x' })).status
    const statuses = await Promise.all(Array.from({ length: 120 }, ask))
    expect(statuses).toContain(429)
    expect(statuses.some((status) => status < 300)).toBe(true)
  })

  test('counts for the rate of wrong keys when it is wrong', async () => {
    const { url, method, headers } = await open(await maker())
    const { authorization } = headers
    const wrong = {
      ...headers,
      ...(authorization ? { authorization: `${authorization.slice(0, -4)}0000` } : {}),
    }
    const address = new URL(url)
    const signature = address.searchParams.get('signature')
    if (signature !== null) address.searchParams.set('signature', `${signature.slice(0, -4)}AAAA`)
    const ask = async () => (await fetch(address, { method, headers: wrong, body: 'x' })).status
    const statuses = await Promise.all(Array.from({ length: 60 }, ask))
    expect(statuses).toContain(429)
    expect(statuses.every((status) => status >= 400)).toBe(true)
    // Until the address may try keys again.
    await new Promise((resolve) => setTimeout(resolve, 3000))
  })
})

test('a signed address ends a download under way when its key is revoked', async () => {
  const who = await maker()
  const made = await sandbox(who)
  const size = 64 * 1024 * 1024
  const path = `/v1/sandboxes/${made.sandboxID.replace(/^sb/, 'sb_')}/files?path=/home/user/slow`
  const stored = await home.call('PUT', path, { key: who.key, body: Buffer.alloc(size, 'x') })
  expect(stored.status).toBeLessThan(300)
  const answer = await new Promise<IncomingMessage>((resolve, reject) => {
    request(signed(made, 'read'), resolve).on('error', reject).end()
  })
  expect(answer.statusCode).toBe(200)
  await revoke(who)
  await new Promise((resolve) => setTimeout(resolve, 1000))
  let got = 0
  await expect(
    (async () => {
      for await (const chunk of answer) got += chunk.length
    })(),
  ).rejects.toThrow()
  expect(got).toBeLessThan(size)
})

test('what cannot be a signature is compared with no sandbox', () => {
  let asked = 0
  const access = (id: string): string => {
    asked++
    return `token of ${id}`
  }
  const ids = Array.from({ length: 100 }, (_, n) => `sb_${n}`)
  const path = 'p'.repeat(15_000)
  const find = (query: Record<string, string>) =>
    signedSandbox(ids, 'GET', new URLSearchParams({ path, username: 'user', ...query }), {
      tokens: { access },
    })
  const sign = (...words: readonly string[]): string =>
    `v1_${createHash('sha256')
      .update([path, 'read', 'user', ...words].join(':'))
      .digest('base64')
      .replace(/=+$/, '')}`
  expect(find({ signature: 'x' })).toBeUndefined()
  expect(find({ signature: sign('token of sb_7').slice(0, -1) })).toBeUndefined()
  expect(find({ signature: sign('token of sb_7'), signature_expiration: '1'.repeat(15_000) })).toBeUndefined()
  expect(asked).toBe(0)
  expect(find({ signature: sign('token of sb_7') })).toBe('sb_7')
  expect(find({ signature: sign('token of sb_7', '12.5'), signature_expiration: '12.5' })).toBe('sb_7')
  expect(asked).toBe(16)
})

describe('templates', () => {
  const row = (kind: 'volume' | 'move' | 'layer' | 'template', tenant: string) => ({
    ...{ id: `snp_${kind}${makers}`, kind, tenant, name: null, sandboxId: null, backend: 'bubblewrap' },
    ...{ createdAt: Date.now(), data: { places: 0 } },
  })

  test('are deleted only if clients see them: no archives of volumes or moves', async () => {
    const { key, id } = await maker()
    const { templates, keys } = home.server.parts
    const tenant = (await keys.principalById(id))?.tenant ?? ''
    for (const kind of ['volume', 'move', 'layer'] as const) {
      const own = row(kind, tenant)
      await templates.save(own)
      expect((await home.call('DELETE', `/templates/${own.id}`, { key })).status).toBe(404)
      expect(await templates.find(tenant, own.id)).toBeDefined()
      // A build of that name does not replace it either.
      const build = await home.call('POST', '/v3/templates', { key, body: { name: own.id } })
      expect(build.json.templateID).not.toBe(own.id)
    }
    const own = row('template', tenant)
    await templates.save(own)
    expect((await home.call('DELETE', `/templates/${own.id}`, { key })).status).toBe(204)
  })

  test('whose build was replaced while the request to start it arrived are not built', async () => {
    const { key, id } = await maker()
    const { builder, keys } = home.server.parts
    const tenant = (await keys.principalById(id))?.tenant ?? ''
    const build = (name: string) => ({
      ...{ id: name, templateId: 'tpl', tenant, name, tags: [], cpus: undefined, memoryMb: undefined },
      ...{ log: new BuildLog(), createdAt: 0, status: 'waiting' as const },
    })
    const old = build('old')
    builder.builds.add(old)
    const answer = new Promise<number>((resolve, reject) => {
      const url = `${home.server.url}/v2/templates/tpl/builds/old`
      const headers = { 'x-api-key': key, 'content-type': 'application/json' }
      const asked = request(url, { method: 'POST', headers }, (got) => resolve(got.statusCode ?? 0))
      asked.on('error', reject)
      asked.write('{"steps":')
      setTimeout(() => {
        for (let n = 0; n < 20; n++) builder.builds.add({ ...build(`b${n}`), createdAt: Date.now() })
        asked.end('[]}')
      }, 500)
    })
    expect(await answer).toBe(404)
    expect(old.status).toBe('waiting')
  })
})
