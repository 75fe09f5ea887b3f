import { execFileSync } from 'node:child_process'
import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { tarOf } from '../tar/writer.ts'
import { needsOf } from './elf.ts'
import { hostTree } from './host-programs.ts'
import { ImageStore } from './store.ts'
import { addText, type Tree } from './tree.ts'
import { unpackLayer } from './unpack.ts'

const dir = mkdtempSync(join(tmpdir(), 'rf-images-'))
afterAll(() => rmSync(dir, { recursive: true, force: true }))

describe('ELF', () => {
  test('a program names its loader and libraries', () => {
    const needs = needsOf(readFileSync('/bin/bash'))
    expect(needs?.interpreter).toMatch(/ld-linux/)
    expect(needs?.libraries).toContain('libc.so.6')
  })
  test('a text file is not an ELF file, and a broken file has no dependencies', () => {
    expect(needsOf(Buffer.from('#!/bin/sh\n'))).toBeUndefined()
    const broken = Buffer.from(readFileSync('/bin/bash').subarray(0, 64))
    expect(needsOf(broken)).toEqual({ interpreter: undefined, libraries: [], paths: [] })
  })
  test('random bytes do no harm', () => {
    const file = readFileSync('/bin/true')
    for (let round = 0; round < 300; round++) {
      const bent = Buffer.from(file)
      for (let at = 4; at < 600; at += 1 + ((round * 7) % 13)) bent[at] = (at * round) & 0xff
      expect(() => needsOf(bent)).not.toThrow()
    }
  })
})

describe('tar', () => {
  const tree: Tree = new Map()
  const long = `/${'directory/'.repeat(15)}file`
  addText(tree, long, 'deep')
  addText(tree, '/a', 'x'.repeat(1000))
  tree.set('/link', { kind: 'link', target: `/${'t'.repeat(150)}` })
  const archive = join(dir, 'one.tar')
  writeFileSync(archive, Buffer.concat([...tarOf(tree)]))

  test('other tools can read it', () => {
    const names = execFileSync('tar', ['tf', archive], { encoding: 'utf8' }).split('\n')
    expect(names).toContain('a')
    expect(names).toContain(long.slice(1))
  })
  test('Ringfence can read it', async () => {
    const into = mkdtempSync(join(dir, 'into-'))
    await unpackLayer(archive, into)
    expect(readFileSync(join(into, long), 'utf8')).toBe('deep')
    expect(readFileSync(join(into, 'a'), 'utf8')).toHaveLength(1000)
  })
  test('a file below a symlink in the archive is refused, and nothing is written to the target of the link', async () => {
    const elsewhere = mkdtempSync(join(dir, 'elsewhere-'))
    const bad: Tree = new Map([
      ['/x', { kind: 'link', target: elsewhere }],
      ['/x/evil', { kind: 'file', mode: 0o644, modified: 0, content: { text: 'x' } }],
    ])
    writeFileSync(archive, Buffer.concat([...tarOf(bad)]))
    await expect(unpackLayer(archive, mkdtempSync(join(dir, 'bad-')))).rejects.toThrow(/below a link/)
    expect(readdirSync(elsewhere)).toEqual([])
  })
  test('a name outside the root is refused', async () => {
    const bad: Tree = new Map([
      ['/../out', { kind: 'file', mode: 0o644, modified: 0, content: { text: 'x' } }],
    ])
    writeFileSync(archive, Buffer.concat([...tarOf(bad)]))
    await expect(unpackLayer(archive, mkdtempSync(join(dir, 'bad-')))).rejects.toThrow(/not an image made by/)
  })
})

/** Downloads from Debian's archive, so it is not part of every run. */
describe.runIf(process.env.RINGFENCE_FULL === '1' && existsSync('/usr/bin/apt-get'))(
  'an image of Debian packages',
  { timeout: 10 * 60_000 },
  () => {
    test('has the same digest each time, and a shell', async () => {
      const source = { kind: 'packages', packages: ['jq'] } as const
      const said: string[] = []
      const onProgress = (text: string): void => void said.push(text)
      const store = new ImageStore(join(dir, 'packages'))
      const first = await store.build('jq', source, { onProgress })
      const second = await new ImageStore(join(dir, 'packages-two')).build('jq', source)
      expect(second.digest).toBe(first.digest)
      expect(said.filter((text) => text.startsWith('unpacking')).length).toBeGreaterThan(5)
      const root = await store.unpacked(first)
      const there = readdirSync(join(root, 'usr', 'bin'))
      expect(there).toEqual(expect.arrayContaining(['sh', 'dash', 'bash', 'jq']))
    })
    test('options of other programs are not accepted as package names', async () => {
      const packages = ['--option=x']
      const store = new ImageStore(join(dir, 'packages'))
      await expect(store.build('x', { kind: 'packages', packages })).rejects.toThrow(/not a package name/)
    })
  },
)

describe('an image of this host’s programs', { timeout: 60_000 }, () => {
  const programs = ['sh', 'ls', 'cat']
  test('has the same digest each time, and is found again', async () => {
    const first = await new ImageStore(join(dir, 'one')).build('a', { kind: 'host', programs })
    const second = await new ImageStore(join(dir, 'two')).build('b', { kind: 'host', programs })
    expect(second.digest).toBe(first.digest)
    const again = await new ImageStore(join(dir, 'one')).build('a', { kind: 'host', programs })
    expect(again).toMatchObject({ digest: first.digest, input: first.input })
  })
  test('unpacks to a root whose programs run', async () => {
    const store = new ImageStore(join(dir, 'one'))
    const [image] = store.list()
    const root = await store.unpacked(image as NonNullable<typeof image>)
    expect(readdirSync(root)).toContain('usr')
    const loader = join(root, needsOf(readFileSync('/bin/ls'))?.interpreter ?? '')
    expect(existsSync(loader)).toBe(true)
  })
  test('is removed completely', () => {
    const store = new ImageStore(join(dir, 'one'))
    expect(store.remove('a')).toBe(true)
    expect(store.remove('a')).toBe(false)
    expect(readdirSync(join(dir, 'one', 'images', 'blobs', 'sha256'))).toEqual([])
    expect(readdirSync(join(dir, 'one', 'images', 'roots'))).toEqual([])
  })
  test('a Node program is copied with its whole module, independent of the package list', () => {
    const { tree } = hostTree(['npm'])
    const root = dirname(dirname(realpathSync('/usr/bin/npm')))
    const lacking = readdirSync(root, { recursive: true, encoding: 'utf8', withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name))
      .filter((path) => !tree.has(path))
    expect(lacking).toEqual([])
    // Its first line asks for node.
    expect(tree.has('/usr/bin/node')).toBe(true)
  })
  test('the default image is rebuilt if the host changed, and only then', async () => {
    const store = (): ImageStore => new ImageStore(join(dir, 'default'))
    const said: string[] = []
    const onProgress = (text: string): void => void said.push(text)
    const first = await store().default({ onProgress })
    const told = said.length
    expect(told).toBeGreaterThan(1)
    expect((await store().default({ onProgress })).digest).toBe(first.digest)
    expect(said.length).toBe(told)
    const record = join(dir, 'default', 'images', 'default.json')
    writeFileSync(record, JSON.stringify({ ...first, stamp: 'of another day' }))
    expect((await store().default({ onProgress })).digest).toBe(first.digest)
    expect(said.length).toBeGreaterThan(told)
  })
  test('a missing program or an invalid name is refused', async () => {
    const store = new ImageStore(join(dir, 'one'))
    await expect(store.build('a', { kind: 'host', programs: ['no-such-program'] })).rejects.toThrow(/has no/)
    await expect(store.build('../a', { kind: 'host', programs })).rejects.toThrow(/not a valid image name/)
    expect(store.get('../../etc/passwd')).toBeUndefined()
  })
})
