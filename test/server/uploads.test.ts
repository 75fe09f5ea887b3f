import { mkdtempSync, readdirSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
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
