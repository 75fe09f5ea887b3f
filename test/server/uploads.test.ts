import { mkdtempSync, readdirSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { SandboxError } from '../../src/model/errors.ts'
import { openStore } from '../../src/store/open.ts'
import type { OpenSandbox } from '../../src/supervisor/open-sandbox.ts'
import { Templates } from '../../src/supervisor/snapshots/templates.ts'

/** Files of template builds: counted per tenant, and stored completely or not at all. */

const dir = mkdtempSync(join(tmpdir(), 'rf-uploads-'))
afterAll(() => rmSync(dir, { recursive: true, force: true }))
const hash = (n: number): string => String(n).padStart(16, '0')
async function* bytes(count: number): AsyncGenerator<Uint8Array, void> {
  for (let n = 0; n < count; n++) yield Buffer.alloc(1024)
}

test('uploads have a quota per tenant, also when they arrive in parallel', async () => {
  const store = await openStore({ stateDir: dir, databaseUrl: '' })
  const templates = new Templates(store, join(dir, 'templates'))
  await templates.takeUpload('red', hash(1), bytes(4))
  // A sparse file uses no disk here and counts with its full size: 4 GiB minus 3 KiB are used afterwards.
  const large = join(dir, 'templates', `upload-red-${hash(2)}`)
  writeFileSync(large, '')
  truncateSync(large, 4 * 1024 ** 3 - 7 * 1024)
  await expect(templates.takeUpload('red', hash(3), bytes(4))).rejects.toMatchObject({ code: 'too-large' })
  const two = await Promise.allSettled([3, 4].map((n) => templates.takeUpload('red', hash(n), bytes(2))))
  expect(two.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected'])
  await templates.takeUpload('blue', hash(1), bytes(100))
  await templates.takeUpload('red', hash(1), bytes(4))
  expect(readdirSync(join(dir, 'templates')).filter((name) => name.endsWith('.tmp'))).toEqual([])
  await store.close()
})

test('the number of uploaded files is limited per tenant', async () => {
  const store = await openStore({ stateDir: dir, databaseUrl: '' })
  const templates = new Templates(store, join(dir, 'many'))
  for (let n = 0; n < 1000; n++) writeFileSync(join(dir, 'many', `upload-red-${hash(n)}`), '')
  await expect(templates.takeUpload('red', hash(1000), bytes(1))).rejects.toMatchObject({ code: 'too-large' })
  await templates.takeUpload('red', hash(999), bytes(1))
  await templates.takeUpload('blue', hash(1), bytes(1))
  await store.close()
})

test('snapshots have a quota per tenant, and a snapshot over quota leaves no files', async () => {
  const store = await openStore({ stateDir: dir, databaseUrl: '' })
  const files = join(dir, 'snapshots')
  const templates = new Templates(store, files)
  const live = { backend: 'bubblewrap', plan: {}, files: { pack: () => bytes(4) } } as unknown as OpenSandbox
  const keep = (tenant: string, id: string) =>
    templates.keep(live, ['/home/user', '/tmp'], {
      id,
      tenant,
      kind: 'snapshot',
      name: null,
      sandboxId: null,
      createdAt: Date.now(),
      data: {},
    })
  await keep('red', 'snp_one')
  truncateSync(join(files, 'snp_one-0.tar'), 40 * 1024 ** 3 - 10 * 1024)
  await expect(keep('red', 'snp_two')).rejects.toMatchObject({ code: 'too-large' })
  expect(readdirSync(files).filter((name) => name.startsWith('snp_two'))).toEqual([])
  await keep('blue', 'snp_three')
  const one = await templates.find('red', 'snp_one')
  if (one) await templates.remove(one)
  await keep('red', 'snp_two')
  await store.close()
})

/** A promise, and what resolves it. */
function later(): { readonly promise: Promise<void>; readonly resolve: () => void } {
  let resolve = (): void => {}
  const promise = new Promise<void>((done) => {
    resolve = done
  })
  return { promise, resolve }
}

/** Bytes of which the rest comes when it is let through. */
function held(first: number, rest: number) {
  const [gate, arrived] = [later(), later()]
  async function* data(): AsyncGenerator<Uint8Array, void> {
    yield* bytes(first)
    arrived.resolve()
    await gate.promise
    yield* bytes(rest)
  }
  return { data, arrived: arrived.promise, release: gate.resolve }
}

test('an upload that began before another one ended counts what that one stored', async () => {
  const store = await openStore({ stateDir: dir, databaseUrl: '' })
  const files = join(dir, 'parallel')
  const templates = new Templates(store, files)
  await templates.takeUpload('red', hash(1), bytes(1))
  truncateSync(join(files, `upload-red-${hash(1)}`), 4 * 1024 ** 3 - 7 * 1024)
  const parallel = [2, 3, 4].map((n) => ({ n, ...held(1, 2) }))
  const results = parallel.map(({ n, data }) => templates.takeUpload('red', hash(n), data()))
  const settled = Promise.allSettled(results)
  await Promise.all(parallel.map(({ arrived }) => arrived))
  // 3 KiB of 7 are taken now; then one after the other ends with 3 KiB.
  for (const [index, { release }] of parallel.entries()) {
    release()
    await results[index]?.catch(() => {})
  }
  expect((await settled).map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled', 'rejected'])
  expect(readdirSync(files).filter((name) => name.endsWith('.tmp'))).toEqual([])
  await store.close()
})

test('a snapshot that began before another one ended counts what that one stored', async () => {
  const store = await openStore({ stateDir: dir, databaseUrl: '' })
  const files = join(dir, 'parallel-snapshots')
  const templates = new Templates(store, files, { archiveBytes: 7 * 1024 })
  const keep = (id: string, pack: () => AsyncGenerator<Uint8Array, void>) =>
    templates.keep(
      { backend: 'bubblewrap', plan: {}, files: { pack } } as unknown as OpenSandbox,
      ['/home/user'],
      { ...{ id, tenant: 'red', kind: 'snapshot', name: null }, sandboxId: null, createdAt: 0, data: {} },
    )
  const parallel = ['snp_1', 'snp_2', 'snp_3'].map((id) => ({ id, ...held(1, 2) }))
  const results = parallel.map(({ id, data }) => keep(id, data))
  const settled = Promise.allSettled(results)
  await Promise.all(parallel.map(({ arrived }) => arrived))
  for (const [index, { release }] of parallel.entries()) {
    release()
    await results[index]?.catch(() => {})
  }
  expect((await settled).map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled', 'rejected'])
  expect(readdirSync(files).sort()).toEqual(['snp_1-0.tar', 'snp_2-0.tar'])
  await store.close()
})

test('an upload ends when the disk of the server is almost full', async () => {
  const store = await openStore({ stateDir: dir, databaseUrl: '' })
  const files = join(dir, 'full')
  const assertFreeSpace = (): void => {
    throw new SandboxError('store-unwritable', 'the disk is almost full')
  }
  const templates = new Templates(store, files, { assertFreeSpace })
  await expect(templates.takeUpload('red', hash(1), bytes(100_000))).rejects.toMatchObject({
    code: 'store-unwritable',
  })
  expect(readdirSync(files)).toEqual([])
  await store.close()
})
