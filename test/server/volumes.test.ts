import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startTestServer, type TestServer } from './test-server.ts'

/** Volumes of `/v1`: content, access and size limits. */

let here: TestServer
let key: string
let other: string
beforeAll(async () => {
  here = await startTestServer('[volumes]\nmax_mb = 64\ntenant_mb = 200\nmax_per_tenant = 6\n')
  key = await here.key(['create', 'exec', 'read'], 'acme')
  other = await here.key(['create', 'exec', 'read'], 'other')
})
afterAll(() => here.close())

const call = (method: string, path: string, body?: unknown, as = key) =>
  here.call(method, path, { key: as, ...(body === undefined ? {} : { body }) })
const volume = (name: string, sizeMb = 16) => call('POST', '/v1/volumes', { name, size_mb: sizeMb })
const sandbox = async (volumes: unknown, more: object = {}) =>
  call('POST', '/v1/sandboxes', { volumes, ...more })
async function run(id: string, command: string): Promise<{ stdout: string; stderr: string; code: number }> {
  const { json } = await call('POST', `/v1/sandboxes/${id}/exec`, { command })
  return { stdout: json.stdout, stderr: json.stderr, code: json.outcome?.code }
}

describe('volumes', () => {
  test('are mounted read-write and read-only, and outlive their sandboxes', async () => {
    expect((await volume('data')).status).toBe(201)
    const { json: writer } = await sandbox([{ name: 'data', target: '/data' }])
    const { json: reader } = await sandbox([{ name: 'data', target: '/data', mode: 'ro' }])
    expect(writer.volumes).toEqual([{ name: 'data', target: '/data', mode: 'rw' }])
    expect(writer.limits.diskMb).toBe(10_240)
    expect(await run(writer.id, 'echo one > /data/f && cat /data/f')).toMatchObject({ stdout: 'one\n' })
    const seen = await run(reader.id, 'cat /data/f; echo two > /data/f')
    expect(seen.stdout).toBe('one\n')
    expect(seen.code).not.toBe(0)
    const { json } = await call('GET', '/v1/volumes/data')
    expect([...json.sandboxes].sort()).toEqual([reader.id, writer.id].sort())
    expect((await call('DELETE', '/v1/volumes/data')).status).toBe(409)
    for (const { id } of [writer, reader]) await call('DELETE', `/v1/sandboxes/${id}`)
    expect((await call('GET', '/v1/volumes/data/files?path=/f')).text).toBe('one\n')
  })

  test('are recorded in the audit log of their tenant', async () => {
    const { json } = await call('GET', '/v1/audit?event=Volume&limit=100')
    const actions = json.items.map(({ action }: { action: string }) => action)
    expect(actions).toEqual(expect.arrayContaining(['create', 'mount']))
    expect(json.items.every(({ tenant }: { tenant: string }) => tenant === 'acme')).toBe(true)
    expect(JSON.stringify(json)).not.toContain(here.dir)
    expect((await call('GET', '/v1/audit?event=Volume', undefined, other)).json.items).toEqual([])
  })

  test('of another tenant do not exist', async () => {
    const id = (await call('GET', '/v1/volumes/data')).json.id
    for (const name of ['data', id]) {
      expect((await call('GET', `/v1/volumes/${name}`, undefined, other)).status).toBe(404)
      expect((await call('DELETE', `/v1/volumes/${name}`, undefined, other)).status).toBe(404)
      expect((await call('GET', `/v1/volumes/${name}/files?path=/f`, undefined, other)).status).toBe(404)
      expect((await call('POST', `/v1/volumes/${name}/copy`, { name: 'x' }, other)).status).toBe(404)
      const asked = { volumes: [{ name, target: '/data' }] }
      expect((await call('POST', '/v1/sandboxes', asked, other)).status).toBe(404)
    }
    expect((await call('GET', '/v1/volumes', undefined, other)).json.items).toEqual([])
  })

  test('are refused at unsafe mount targets', async () => {
    for (const target of ['/etc', '/proc/x', '/usr/bin', '/data/../etc', 'data', '/.ringfence/x', '/']) {
      const { status } = await sandbox([{ name: 'data', target }])
      expect({ target, status }).toEqual({
        target,
        status: expect.toSatisfy((code: number) => code >= 400 && code < 500),
      })
    }
    for (const name of ['../homes', '/etc', '', 'vol_00'])
      expect((await sandbox([{ name, target: '/data' }])).status).toBeGreaterThanOrEqual(400)
  })

  test('can be copied, and a read-only copy cannot be changed', async () => {
    const { json: writer } = await sandbox([{ name: 'data', target: '/data' }])
    expect(
      (await call('POST', '/v1/volumes/data/copy', { name: 'frozen', read_only: true })).json,
    ).toMatchObject({
      name: 'frozen',
      read_only: true,
    })
    await run(writer.id, 'echo later > /data/f')
    expect((await call('GET', '/v1/volumes/frozen/files?path=/f')).text).toBe('one\n')
    expect((await call('PUT', '/v1/volumes/frozen/files?path=/f', 'x')).status).toBe(409)
    expect((await call('DELETE', '/v1/volumes/frozen/files?path=/f')).status).toBeGreaterThanOrEqual(400)
    expect((await sandbox([{ name: 'frozen', target: '/data' }])).status).toBe(409)
    const { json: reader } = await sandbox([{ name: 'frozen', target: '/data', mode: 'ro' }])
    expect((await run(reader.id, 'cat /data/f')).stdout).toBe('one\n')
    for (const { id } of [writer, reader]) await call('DELETE', `/v1/sandboxes/${id}`)
    expect((await call('DELETE', '/v1/volumes/frozen')).status).toBe(204)
  })

  test('are not copied in part if a file cannot be read', async () => {
    await call('POST', '/v1/volumes', { name: 'private' })
    const { json: writer } = await sandbox([{ name: 'private', target: '/data' }])
    const copied = () => call('POST', '/v1/volumes/private/copy', { name: 'part' })
    for (const hidden of ['echo x > /data/x; chmod 0 /data/x', 'mkdir /data/x; chmod 0 /data/x']) {
      await run(writer.id, hidden)
      const answer = await copied()
      expect(answer.status, answer.text).toBe(409)
      expect(answer.text).toContain('files that cannot be read')
      await run(writer.id, 'chmod 700 /data/x; rm -r /data/x')
    }
    expect((await copied()).status).toBe(201)
    await call('DELETE', `/v1/sandboxes/${writer.id}`)
    for (const name of ['private', 'part']) await call('DELETE', `/v1/volumes/${name}`)
  })

  test('are not part of snapshots: a fork mounts them again', async () => {
    const { json: one } = await sandbox([{ name: 'data', target: '/tmp/data' }])
    await run(one.id, 'echo before > /tmp/data/f; echo mine > /tmp/own')
    const { json: snapshot } = await call('POST', `/v1/sandboxes/${one.id}/snapshot`, {})
    await run(one.id, 'echo after > /tmp/data/f')
    const asked = { volumes: [{ name: 'data', target: '/tmp/data' }], template: snapshot.id }
    const { json: two } = await call('POST', '/v1/sandboxes', asked)
    expect((await run(two.id, 'cat /tmp/data/f /tmp/own')).stdout).toBe('after\nmine\n')
    for (const { id } of [one, two]) await call('DELETE', `/v1/sandboxes/${id}`)
    await call('DELETE', `/v1/snapshots/${snapshot.id}`)
  })
})

describe('the size of a volume', () => {
  test('is bounded for one volume and for a tenant', async () => {
    expect((await volume('huge', 65)).status).toBe(422)
    expect((await volume('a', 64)).status).toBe(201)
    expect((await volume('b', 64)).status).toBe(201)
    expect((await volume('c', 64)).status).toBe(413)
    for (const name of ['a', 'b']) expect((await call('DELETE', `/v1/volumes/${name}`)).status).toBe(204)
  })

  test('stops a transfer that does not fit', async () => {
    await volume('small', 1)
    expect((await call('PUT', '/v1/volumes/small/files?path=/ok', 'x'.repeat(100_000))).status).toBe(200)
    expect((await call('PUT', '/v1/volumes/small/files?path=/f', 'x'.repeat(2_000_000))).status).toBe(413)
    expect((await call('GET', '/v1/volumes/small')).json.used_bytes).toBeLessThan(1024 * 1024)
  })

  test('includes deleted files that a sandbox still holds open or mapped', async () => {
    await volume('held', 4)
    const programs = [
      "f = os.open('/data/f', os.O_RDWR | os.O_CREAT); os.unlink('/data/f'); os.write(f, bytes(9 << 20))",
      "f = os.open('/data/f', os.O_RDWR | os.O_CREAT); os.unlink('/data/f'); os.write(f, bytes(9 << 20)); m = mmap.mmap(f, 9 << 20); os.close(f)",
    ]
    for (const program of programs) {
      const { json: one } = await sandbox([{ name: 'held', target: '/data' }])
      const script = `import mmap, os, time; ${program}; print(1, flush=True); time.sleep(60)`
      await run(one.id, `python3 -c "${script}"`).catch(() => {})
      const state = async () => (await call('GET', `/v1/sandboxes/${one.id}`)).json
      await expect.poll(async () => (await state()).reason, { timeout: 10_000 }).toBe('volume-full')
    }
    await call('DELETE', '/v1/volumes/held')
  })

  test('stops sandboxes that exceed it; a full volume is read-only until files are removed', async () => {
    const { json: one } = await sandbox([{ name: 'small', target: '/data' }])
    await run(one.id, 'head -c 3000000 /dev/zero > /data/big; sync').catch(() => {})
    const ended = async () => (await call('GET', `/v1/sandboxes/${one.id}`)).json
    for (let tries = 0; tries < 100 && !(await ended()).ended_at; tries++)
      await new Promise((resolve) => setTimeout(resolve, 100))
    expect(await ended()).toMatchObject({ state: 'destroyed', reason: 'volume-full' })
    expect((await sandbox([{ name: 'small', target: '/data' }])).status).toBe(413)
    const { json: reader } = await sandbox([{ name: 'small', target: '/data', mode: 'ro' }])
    expect((await run(reader.id, 'wc -c < /data/big')).stdout.trim()).toBe('3000000')
    await call('DELETE', `/v1/sandboxes/${reader.id}`)
    expect((await call('DELETE', '/v1/volumes/small/files?path=/big')).status).toBe(204)
    const { json: again } = await sandbox([{ name: 'small', target: '/data' }])
    expect((await run(again.id, 'ls /data')).stdout).toBe('ok\n')
    await call('DELETE', `/v1/sandboxes/${again.id}`)
  })
})
