import { createHash } from 'node:crypto'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readFileSync,
  readlinkSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Sandbox } from '../../src/index.ts'
import { makeTestHost, type TestHost, text, until } from './persistent-sandbox.ts'

/** File operations through the agent, in a persistent sandbox. */

let testHost: TestHost
let sandbox: Sandbox
beforeAll(async () => {
  testHost = makeTestHost('files')
  sandbox = await testHost.open()
})
afterAll(async () => {
  await sandbox.close()
  testHost.drop()
})

const at = (...names: readonly string[]): string => join(testHost.workspace, ...names)
const read = async (source: AsyncIterable<Uint8Array>): Promise<Buffer> => {
  const parts: Uint8Array[] = []
  for await (const part of source) parts.push(part)
  return Buffer.concat(parts)
}

describe('reading and writing files', () => {
  test('reads ranges, stops at the end of the file, and can be stopped early', async () => {
    writeFileSync(at('digits'), '0123456789')
    const part = async (offset: number, length?: number): Promise<string> =>
      text(await sandbox.files.read(at('digits'), { offset, ...(length === undefined ? {} : { length }) }))
    expect(await part(0)).toBe('0123456789')
    expect(await part(3, 4)).toBe('3456')
    expect(await part(8, 100)).toBe('89')
    expect(await part(100)).toBe('')
    await sandbox.exec(['truncate', '-s', '200M', 'sparse'])
    for await (const chunk of sandbox.files.readStream(at('sparse'))) {
      expect(chunk.length).toBeGreaterThan(0)
      break
    }
    expect(text((await sandbox.exec(['echo', 'alive'])).stdout)).toBe('alive\n')
  })

  test('refuses to read a 1 TiB file whole, and reads a part of it', async () => {
    await sandbox.exec(['truncate', '-s', '1T', 'endless'])
    await expect(sandbox.files.read(at('endless'))).rejects.toMatchObject({ code: 'too-large' })
    expect(await sandbox.files.read(at('endless'), { length: 10 })).toHaveLength(10)
    await sandbox.exec(['rm', 'endless'])
  })

  test('streams 32 MB in both directions unchanged', { timeout: 60_000 }, async () => {
    const hash = createHash('sha256')
    async function* parts(): AsyncGenerator<Uint8Array> {
      for (let part = 0; part < 320; part++) {
        const chunk = Buffer.alloc(100_003, part)
        hash.update(chunk)
        yield chunk
      }
    }
    await sandbox.files.write(at('new', 'dir', 'big'), parts())
    const back = createHash('sha256')
    for await (const chunk of sandbox.files.readStream(at('new', 'dir', 'big'))) back.update(chunk)
    expect(back.digest('hex')).toBe(hash.digest('hex'))
    expect(statSync(at('new', 'dir', 'big')).size).toBe(320 * 100_003)
  })

  test('fails if the source of a write fails', async () => {
    async function* broken(): AsyncGenerator<Uint8Array> {
      yield Buffer.from('half')
      throw new Error('the source broke')
    }
    await expect(sandbox.files.write(at('half'), broken())).rejects.toThrow('the source broke')
  })

  test('reports directories, pipes and missing files with their own error codes', async () => {
    mkdirSync(at('a-dir'))
    await sandbox.exec(['mkfifo', 'a-pipe'])
    await expect(sandbox.files.read(at('a-dir'))).rejects.toMatchObject({ code: 'invalid-input' })
    await expect(sandbox.files.read(at('a-pipe'))).rejects.toMatchObject({ code: 'invalid-input' })
    await expect(sandbox.files.read(at('nothing'))).rejects.toMatchObject({ code: 'file-not-found' })
    await expect(sandbox.files.list(at('digits'))).rejects.toMatchObject({ code: 'invalid-input' })
    await expect(sandbox.files.makeDir(at('a-dir'))).rejects.toMatchObject({ code: 'file-exists' })
  })

  test.each(['/etc/shadow', '/root', '/proc/1/environ', '/nonexistent', '/usr/bin/planted'])(
    'a path outside the grants gives the same error whether it exists or not: %s',
    async (path) => {
      await expect(sandbox.files.write(path, 'x')).rejects.toMatchObject({ code: 'path-traversal' })
      if (!path.startsWith('/usr'))
        await expect(sandbox.files.remove(path)).rejects.toMatchObject({ code: 'path-traversal' })
    },
  )

  test('refuses protected names, and writes nothing through a symlink that leads out', async () => {
    symlinkSync(testHost.base, at('out'))
    await expect(sandbox.files.write(at('.envrc'), 'x')).rejects.toMatchObject({ code: 'path-traversal' })
    // Its own /tmp may have a directory of that name; the host's has nothing new.
    await sandbox.files.write(at('out', 'planted'), 'x').catch(() => {})
    await expect(sandbox.files.makeDir(at('sub', '.git'))).rejects.toThrow()
    expect([
      existsSync(at('.envrc')),
      existsSync(join(testHost.base, 'planted')),
      existsSync(at('sub', '.git')),
    ]).toEqual([false, false, false])
  })
})

describe('directories', () => {
  test('list by depth, stat, move, remove', async () => {
    await sandbox.exec(
      'mkdir -p t/a/b/c && echo 1 > t/one && echo 2 > t/a/two && echo 3 > t/a/b/three && ln -s one t/link',
    )
    chmodSync(at('t', 'one'), 0o640)
    const names = async (depth: number): Promise<string[]> =>
      (await sandbox.files.entries(at('t'), depth)).map(({ path }) => path.slice(at('t').length + 1)).sort()
    expect(await names(1)).toEqual(['a', 'link', 'one'])
    expect(await names(2)).toEqual(['a', 'a/b', 'a/two', 'link', 'one'])
    expect(await names(9)).toContain('a/b/c')
    expect(await sandbox.files.stat(at('t', 'link'))).toMatchObject({
      kind: 'link',
      target: 'one',
      name: 'link',
    })
    expect(await sandbox.files.stat(at('t', 'one'))).toMatchObject({ kind: 'file', size: 2, mode: 0o640 })
    await sandbox.files.move(at('t', 'a'), at('moved', 'to', 'a'))
    expect(readFileSync(at('moved', 'to', 'a', 'b', 'three'), 'utf8')).toBe('3\n')
    await sandbox.files.remove(at('moved'))
    await sandbox.files.remove(at('t', 'link'))
    expect([existsSync(at('moved')), existsSync(at('t', 'one'))]).toEqual([false, true])
  })

  test('accept names with any character that a file name may have', async () => {
    const odd = ['two words', 'line\nbreak', 'tab\t', '-dash', 'ünïcode 文', 'quote\'"', '*?[x]']
    for (const name of odd) await sandbox.files.write(at('odd', name), name)
    expect(await sandbox.files.list(at('odd'))).toEqual([...odd].sort())
    for (const name of odd) expect(text(await sandbox.files.read(at('odd', name)))).toBe(name)
  })

  test('watch reports changes below a directory, also in directories created later', async () => {
    mkdirSync(at('watched', 'inner'), { recursive: true })
    const stop = new AbortController()
    const seen = new Set<string>()
    const ready = new Promise<void>((resolve) => {
      void sandbox.files
        .watch(at('watched'), {
          recursive: true,
          signal: stop.signal,
          onReady: resolve,
          onChange: ({ kind, name }) => void seen.add(`${kind} ${name}`),
        })
        .then(() => seen.add('over'))
    })
    await ready
    writeFileSync(at('watched', 'inner', 'f'), 'x')
    await sandbox.exec('mkdir watched/later')
    expect(await until(() => seen.has('create later'))).toBe(true)
    await until(async () => {
      writeFileSync(at('watched', 'later', 'g'), String(Math.random()))
      return seen.has('write later/g')
    })
    await sandbox.exec('mv watched/inner/f watched/inner/h && rm watched/inner/h')
    expect(await until(() => seen.has('remove inner/h') && seen.has('create inner/f'))).toBe(true)
    stop.abort()
    expect(await until(() => seen.has('over'))).toBe(true)
  })
})

describe('tar archives', () => {
  test('keep long names, links, modes and empty directories', async () => {
    const long = join('n'.repeat(200), 'm'.repeat(200))
    mkdirSync(at('pack', long), { recursive: true })
    mkdirSync(at('pack', 'empty'))
    writeFileSync(at('pack', long, 'file'), 'deep')
    writeFileSync(at('pack', 'run.sh'), '#!/bin/sh\n')
    chmodSync(at('pack', 'run.sh'), 0o755)
    symlinkSync('run.sh', at('pack', 'link'))
    symlinkSync('/'.concat('x'.repeat(300)), at('pack', 'far'))
    const tar = await read(sandbox.files.pack(at('pack')))
    await sandbox.files.unpack(at('unpacked'), [tar])
    expect(readFileSync(at('unpacked', long, 'file'), 'utf8')).toBe('deep')
    expect(readlinkSync(at('unpacked', 'link'))).toBe('run.sh')
    expect(readlinkSync(at('unpacked', 'far'))).toBe('/'.concat('x'.repeat(300)))
    expect(statSync(at('unpacked', 'run.sh')).mode & 0o777).toBe(0o755)
    expect(statSync(at('unpacked', 'empty')).isDirectory()).toBe(true)
    // The system's tar reads the same content.
    writeFileSync(at('pack.tar'), tar)
    expect(text((await sandbox.exec('tar -tf pack.tar | sort | tail -1')).stdout)).toBe('run.sh\n')
  })

  test.each([
    ['dots', '../escaped', ''],
    ['a path with `..`', 'a/../../escaped', ''],
    ['a symlink out of the directory', 'way/escaped', '..'],
    ['an absolute link', 'way/escaped', 'BASE'],
  ])('unpack nothing above the target directory: %s', async (_, name, link) => {
    const target = link === 'BASE' ? testHost.base : link
    const parts = [
      ...(target ? [entry('way', '2', '', target)] : []),
      entry(name, '0', 'PWNED'),
      Buffer.alloc(1024),
    ]
    await sandbox.files.unpack(at('box'), [Buffer.concat(parts)]).catch(() => {})
    for (const place of [at('escaped'), join(testHost.base, 'escaped'), at('box', 'way', 'escaped')])
      expect(existsSync(place)).toBe(false)
  })

  test('with an absolute path are unpacked below the target; with a protected name they are refused', async () => {
    await sandbox.files.unpack(at('abs'), [
      Buffer.concat([entry('/etc/passwd', '0', 'mine'), Buffer.alloc(1024)]),
    ])
    expect(readFileSync(at('abs', 'etc', 'passwd'), 'utf8')).toBe('mine')
    const planted = Buffer.concat([entry('.git/hooks/x', '0', 'PWNED'), Buffer.alloc(1024)])
    await expect(sandbox.files.unpack(at('abs'), [planted])).rejects.toThrow()
    expect(existsSync(at('abs', '.git'))).toBe(false)
  })

  test('that are truncated are an error', async () => {
    const cut = entry('f', '0', 'x'.repeat(2000)).subarray(0, 1000)
    await expect(sandbox.files.unpack(at('cut'), [cut])).rejects.toThrow()
  })
})

/** One entry of a hostile archive. */
function entry(name: string, type: string, content: string, link = ''): Buffer {
  const block = Buffer.alloc(512)
  block.write(name, 0)
  block.write('0000644\0', 100)
  block.write(`${content.length.toString(8).padStart(11, '0')}\0`, 124)
  block.write(type, 156)
  block.write(link, 157)
  block.write('ustar\x0000', 257)
  block.write('        ', 148)
  block.write(
    `${block
      .reduce((sum, byte) => sum + byte, 0)
      .toString(8)
      .padStart(6, '0')}\0 `,
    148,
  )
  const body = Buffer.alloc(Math.ceil(content.length / 512) * 512)
  body.write(content)
  return Buffer.concat([block, body])
}
