import { afterAll, beforeAll, expect, test } from 'vitest'
import { client, type Loose, type World, world } from './kit.ts'

/** Names and values that a client gives a file. They are extended attributes, so programs inside see and move them. */

let here: World
let e2b: Loose
let sandbox: Loose
beforeAll(async () => {
  here = await world()
  e2b = await client('e2b')
  sandbox = await e2b.Sandbox.create(here.options)
})
afterAll(async () => {
  await here.close()
  expect(here.logs).toEqual([])
})

const of = async (path: string): Promise<unknown> => (await sandbox.files.getInfo(path)).metadata
const run = (line: string): Promise<Loose> => sandbox.commands.run(line)
/** Sets an attribute from inside, past every client. */
const setInside = (file: string, name: string, value: string): Promise<Loose> =>
  run(`python3 -c "import os; os.setxattr('${file}', '${name}', ${value})"`)

test('file metadata is returned with the file and in a list, and survives a rename', async () => {
  const metadata = { author: 'ada', 'made-for': 'a = b; c' }
  expect((await sandbox.files.write('d/one', 'x', { metadata })).metadata).toEqual(metadata)
  expect(await of('d/one')).toEqual(metadata)
  await sandbox.files.rename('d/one', 'd/two')
  await run('mv d/two d/three')
  const [listed] = await sandbox.files.list('d')
  expect([listed.name, listed.metadata]).toEqual(['three', metadata])
  expect(await sandbox.files.read('d/three')).toBe('x')
})

test('file metadata applies to every file of one upload', async () => {
  const files = ['m/1', 'm/2'].map((path) => ({ path, data: path }))
  await sandbox.files.write(files, { metadata: { of: 'both' } })
  for (const { path } of files) expect(await of(path)).toEqual({ of: 'both' })
})

test('file metadata is replaced with the file', async () => {
  await sandbox.files.write('replaced', '1', { metadata: { a: '1', b: '2' } })
  await sandbox.files.write('replaced', '2', { metadata: { b: '3' } })
  expect(await of('replaced')).toEqual({ b: '3' })
  await sandbox.files.write('replaced', '3')
  expect(await of('replaced')).toBeUndefined()
})

test('file metadata is part of a snapshot', async () => {
  await sandbox.files.write('kept', 'x', { metadata: { tag: 'kept' } })
  const { snapshotId } = await sandbox.createSnapshot()
  const copy = await e2b.Sandbox.create(snapshotId, here.options)
  expect((await copy.files.getInfo('kept')).metadata).toEqual({ tag: 'kept' })
  await copy.kill()
})

test('metadata set inside the sandbox is read, except values that are not plain text', async () => {
  await run('touch inside')
  await setInside('inside', 'user.e2b.author', "b'inside'")
  await setInside('inside', 'user.other', "b'no'")
  await setInside('inside', 'user.e2b.bytes', "b'\\x01x\\x00y'")
  await setInside('inside', 'user.e2b.__proto__', "b'polluted'")
  const found = (await of('inside')) as Loose
  expect(Object.keys(found).sort()).toEqual(expect.arrayContaining(['author']))
  expect([found.author, found.bytes, found.other]).toEqual(['inside', undefined, undefined])
  expect(({} as Loose).polluted).toBeUndefined()
})

test('too much metadata, or metadata that is not text, is refused, and nothing is written', async () => {
  const put = (headers: Record<string, string>): Promise<Response> =>
    fetch(`${here.options.apiUrl}/files?path=refused`, {
      method: 'POST',
      headers: { 'x-access-token': sandbox.envdAccessToken, ...headers },
      body: 'x',
    })
  expect((await put({ 'x-metadata-long': 'x'.repeat(3000) })).status).toBe(413)
  expect((await put({ 'x-metadata-latin': 'gr\u00fcn' })).status).toBe(400)
  expect((await put({ 'x-metadata-': 'x' })).status).toBe(400)
  expect(await sandbox.files.exists('refused')).toBe(false)
})
