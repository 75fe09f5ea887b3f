import { randomBytes } from 'node:crypto'
import {
  existsSync,
  lstatSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { header } from '../../src/backends/tar/writer.ts'
import { type ImageSettings, Images } from '../../src/supervisor/images/images.ts'
import { type Entry, hasRegistry, TestRegistry, tarOf } from './test-registry.ts'

/** Images of a real registry, and what hostile ones can do. */

let registry: TestRegistry
let dir: string
const settings: { now: ImageSettings } = { now: { mirrors: [], maxMb: 8, maxFiles: 2000, maxTenantMb: 1000 } }
let images: Images

beforeAll(async () => {
  dir = realpathSync(mkdtempSync(join(tmpdir(), 'rf-images-')))
  writeFileSync(join(dir, 'agent'), 'agent')
  if (hasRegistry) registry = await TestRegistry.start()
  settings.now = { ...settings.now, mirrors: [{ registry: 'docker.io', url: registry?.url ?? '' }] }
  images = new Images({ dir: join(dir, 'trees'), agent: join(dir, 'agent'), settings: () => settings.now })
})
afterAll(async () => {
  await registry?.close()
  rmSync(dir, { recursive: true, force: true })
})

const treeOf = (digest: string): string => join(dir, 'trees', digest.slice('sha256:'.length), 'root')
let count = 0
/** Pushes an image of these layers and pulls it. */
async function pulled(...layers: readonly (readonly Entry[] | Buffer)[]): Promise<string> {
  const name = `test/image-${++count}`
  await registry.push(name, layers)
  return treeOf((await images.pull(name)).digest)
}
const drafts = (): readonly string[] => readdirSync(join(dir, 'trees')).filter((name) => name.startsWith('.'))

describe.skipIf(!hasRegistry)('an image', () => {
  test('counts directories implied by file names towards its limit', async () => {
    const name = (index: number): string => `${Array(40).fill(`d${index}`).join('/')}/f`.slice(-99)
    const files = Array.from({ length: 100 }, (_, index) => ({ name: name(index), data: '' }))
    await expect(pulled(files)).rejects.toThrow(/too many/)
    expect(drafts()).toEqual([])
  })

  test('gets at most 1000 skeleton files in the home directory', async () => {
    const files = Array.from({ length: 1500 }, (_, index) => ({ name: `etc/skel/f${index}`, data: '' }))
    await registry.push('test/skeleton', [[{ name: 'etc/' }, { name: 'etc/skel/' }, ...files]])
    const [upper = ''] = images.layersOf((await images.pull('test/skeleton')).digest)
    expect(readdirSync(join(upper, 'home/user')).length).toBeLessThanOrEqual(1000)
  })

  test('has the requested name, also if it was pulled under another name before', async () => {
    const layer = [{ name: 'same', data: 'x' }]
    await registry.push('test/theirs', [layer])
    await registry.push('test/ours', [layer])
    const theirs = await images.pull('test/theirs')
    const ours = await images.pull('test/ours')
    expect([ours.digest, ours.name]).toEqual([theirs.digest, 'docker.io/test/ours:latest'])
  })

  test('of another tenant cannot be pulled by repeating only its manifest', async () => {
    await registry.push('test/secret', [[{ name: 'secret', data: 'theirs' }]])
    const { digest } = await images.pull('test/secret')
    const accept = 'application/vnd.oci.image.manifest.v1+json'
    const from = `${registry.url}/v2/test/secret`
    const manifest = await (await fetch(`${from}/manifests/latest`, { headers: { accept } })).text()
    let blobs = 404
    const own = createServer(async ({ url = '' }, answer) => {
      const isManifest = url.includes('/manifests/')
      const blob = isManifest ? undefined : await fetch(`${from}/blobs/${url.split('/').at(-1)}`)
      answer.writeHead(isManifest ? 200 : blobs, { 'content-type': accept })
      answer.end(blob ? Buffer.from(await blob.arrayBuffer()) : manifest)
    })
    await new Promise<void>((resolve) => own.listen(0, '127.0.0.1', resolve))
    const url = `http://127.0.0.1:${(own.address() as { port: number }).port}`
    const before = settings.now
    settings.now = { ...before, mirrors: [...before.mirrors, { registry: 'own.example', url }] }
    try {
      await expect(images.pull('own.example/any/name')).rejects.toThrow()
      await expect(images.pull(`own.example/any/name@${digest}`)).rejects.toThrow()
      // A client that has the layers may also share the tree.
      blobs = 200
      expect((await images.pull('own.example/any/name')).digest).toBe(digest)
    } finally {
      settings.now = before
      own.close()
    }
  })

  test('counts towards the quota of every tenant that pulled it, until it is removed', async () => {
    const image = (name: string, bytes: number) =>
      registry.push(name, [[{ name, data: Buffer.alloc(bytes, name) }]])
    await image('test/first', 3_000_000)
    await image('test/second', 3_000_000)
    const before = settings.now
    settings.now = { ...before, maxTenantMb: 4 }
    try {
      const first = await images.pull('test/first', { tenant: 'ada' })
      await expect(images.pull('test/second', { tenant: 'ada' })).rejects.toThrow(/more than 4 MB/)
      expect(existsSync(treeOf(first.digest))).toBe(true)
      const second = await images.pull('test/second', { tenant: 'bob' })
      await expect(images.pull('test/second', { tenant: 'ada' })).rejects.toThrow(/more than 4 MB/)
      expect(existsSync(treeOf(second.digest))).toBe(true)
      await images.prune(new Set(), new Set(), Date.now() + 1000)
      expect((await images.pull('test/second', { tenant: 'ada' })).digest).toBe(second.digest)
    } finally {
      settings.now = before
    }
  })

  test('that is still being unpacked counts towards the quota of its tenant', async () => {
    for (const name of ['slow', 'other'])
      await registry.push(`test/${name}`, [[{ name, data: randomBytes(3_000_000) }]])
    let release = (): void => {}
    const released = new Promise<void>((resolve) => {
      release = resolve
    })
    // Gives all of a large blob of `slow` but its end.
    const mirror = createServer(async ({ url = '', headers }, answer) => {
      const accept = String(headers.accept ?? '*/*')
      const from = await fetch(`${registry.url}${url}`, { headers: { accept } })
      const body = Buffer.from(await from.arrayBuffer())
      answer.writeHead(from.status, { 'content-type': from.headers.get('content-type') ?? '' })
      if (url.includes('/slow/blobs/') && body.length > 100_000) {
        answer.write(body.subarray(0, -1000))
        await released
        answer.end(body.subarray(-1000))
      } else answer.end(body)
    })
    await new Promise<void>((resolve) => mirror.listen(0, '127.0.0.1', resolve))
    const url = `http://127.0.0.1:${(mirror.address() as { port: number }).port}`
    const before = settings.now
    settings.now = { ...before, maxTenantMb: 4, mirrors: [{ registry: 'docker.io', url }] }
    try {
      const slow = images.pull('test/slow', { tenant: 'eve' })
      slow.catch(() => {})
      const unpacked = (): boolean =>
        drafts().some((name) => {
          const file = join(dir, 'trees', name, 'root', 'slow')
          return existsSync(file) && lstatSync(file).size > 2_000_000
        })
      await expect.poll(unpacked).toBe(true)
      await expect(images.pull('test/other', { tenant: 'eve' })).rejects.toThrow(/more than 4 MB/)
      expect(drafts()).toHaveLength(1)
      release()
      expect(existsSync(treeOf((await slow).digest))).toBe(true)
    } finally {
      release()
      settings.now = before
      mirror.close()
    }
  })

  test('is pulled by tag and by digest, and unpacked once', async () => {
    const config = {
      Env: ['A=b', 'PATH=/x'],
      WorkingDir: '/srv',
      User: '33',
      Cmd: ['run'],
      Entrypoint: ['go'],
    }
    const digest = await registry.push(
      'library/debian:12',
      [[{ name: 'etc/' }, { name: 'etc/f', data: 'one' }]],
      {
        config,
      },
    )
    const lines: string[] = []
    const first = await images.pull('debian:12', { say: (line) => lines.push(line) })
    expect(first).toEqual({
      digest,
      name: 'docker.io/library/debian:12',
      config: { env: { A: 'b', PATH: '/x' }, workdir: '/srv', user: '33', command: ['go', 'run'] },
    })
    expect(readFileSync(join(treeOf(digest), 'etc/f'), 'utf8')).toBe('one')
    expect(lines).toEqual(['docker.io/library/debian:12: layer 1 of 1, 1 MB'])
    const again = [
      images.pull('docker.io/library/debian:12', { say: (line) => lines.push(line) }),
      images.pull(`debian@${digest}`, { say: (line) => lines.push(line) }),
    ]
    for (const one of await Promise.all(again)) expect(one.digest).toBe(digest)
    expect(lines.slice(1).every((line) => line.endsWith('is here already'))).toBe(true)
  })

  test('has its layers applied in order: later files win, and whiteouts remove files', async () => {
    const tree = await pulled(
      [
        { name: './' },
        { name: './usr/lib/' },
        { name: './lib', type: '2', link: 'usr/lib' },
        { name: './lib/a', data: 'first' },
        { name: './lib/b', data: 'gone' },
        { name: './old/x', data: 'x' },
        { name: './kept', data: 'k', uid: 33 },
        { name: './same', type: '1', link: './kept' },
      ],
      [
        { name: 'lib/a', data: 'second' },
        { name: 'usr/lib/.wh.b' },
        { name: 'old/.wh..wh..opq' },
        { name: 'old/y', data: 'y' },
      ],
    )
    expect(readFileSync(join(tree, 'usr/lib/a'), 'utf8')).toBe('second')
    expect(readdirSync(join(tree, 'usr/lib'))).toEqual(['a'])
    expect(readdirSync(join(tree, 'old'))).toEqual(['y'])
    expect(lstatSync(join(tree, 'kept')).ino).toBe(lstatSync(join(tree, 'same')).ino)
    if (process.getuid?.() === 0) expect(lstatSync(join(tree, 'kept')).uid).toBe(33)
  })

  test('is removed when nothing uses it', async () => {
    const [one = '', two = '', three = ''] = [
      await pulled([{ name: 'a' }]),
      await pulled([{ name: 'b' }]),
      await pulled([{ name: 'c' }]),
    ]
    const inUse = new Set([`sha256:${one.split('/').at(-2)}`])
    const all = readdirSync(join(dir, 'trees')).length
    expect(await images.prune(inUse, new Set([two]), 0)).toBe(0)
    expect(await images.prune(inUse, new Set([two]), Date.now() + 1000)).toBe(all - 2)
    expect([one, two, three].map(existsSync)).toEqual([true, true, false])
  })

  test('that does not exist, or with an invalid name, is refused', async () => {
    await expect(images.pull('nothing:1')).rejects.toThrow('there is no image')
    for (const name of ['', 'UPPER', 'a b', 'x@sha256:12', '../x', 'http://x/y', 'a:b:c'])
      await expect(images.pull(name)).rejects.toThrow('not the name of an image')
  })

  test('of a private or forbidden registry is refused', async () => {
    for (const name of ['127.0.0.1:5000/x', 'localhost/x', '169.254.169.254/x', '10.0.0.1:443/x/y:z'])
      await expect(images.pull(name)).rejects.toMatchObject({ code: 'ssrf-blocked' })
    settings.now = { ...settings.now, registries: ['ghcr.io'] }
    await expect(images.pull('quay.io/x')).rejects.toThrow('may not be used')
    settings.now = { ...settings.now, registries: undefined }
  })

  test('gets the users and programs that sandboxes expect', async () => {
    const tree = await pulled([
      { name: 'etc/passwd', data: 'root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n' },
      { name: 'etc/group', data: 'root:x:0:\nsudo:x:27:node\n' },
      { name: 'usr/bin/' },
      { name: 'usr/sbin', type: '2', link: 'bin' },
    ])
    const digest = `sha256:${tree.split('/').at(-2)}`
    const [upper = '', lower] = images.layersOf(digest)
    expect(lower).toBe(tree)
    const passwd = readFileSync(join(upper, 'etc/passwd'), 'utf8')
    expect(passwd.split('\n')[1]).toBe('user:x:1000:1000::/home/user:/bin/sh')
    expect(readFileSync(join(upper, 'etc/group'), 'utf8')).toContain('sudo:x:27:node,user')
    expect(existsSync(join(upper, 'usr/bin/sudo'))).toBe(true)
    expect(existsSync(join(upper, 'usr/sbin'))).toBe(false)
  })
})

describe.skipIf(!hasRegistry)('a hostile image', () => {
  test('cannot write outside its tree, by names or by links', async () => {
    const outside = join(dir, 'outside')
    for (const name of ['../outside', 'a/../../outside', '../../outside'])
      await expect(pulled([{ name, data: 'x' }])).rejects.toThrow('leads outside')
    const absolute = await pulled([
      { name: outside.slice(1), data: 'x' },
      { name: outside, data: 'y' },
    ])
    expect(readFileSync(join(absolute, outside), 'utf8')).toBe('y')
    const linked = await pulled([
      { name: 'up', type: '2', link: '../../../../../../../..' },
      { name: `up${dir}/outside`, data: 'x' },
      { name: 'root', type: '2', link: '/' },
      { name: `root${dir}/outside`, data: 'z' },
      { name: 'here', type: '2', link: dir },
      { name: 'here/outside', data: 'w' },
    ])
    expect(existsSync(outside)).toBe(false)
    expect(readFileSync(join(linked, dir, 'outside'), 'utf8')).toBe('w')
  })

  test('cannot link to files of the host', async () => {
    writeFileSync(join(dir, 'secret'), 'secret')
    const link = join(dir, 'secret')
    await expect(pulled([{ name: 'leak', type: '1', link }])).rejects.toThrow('not a file of the image')
    await expect(
      pulled([
        { name: 'up', type: '2', link: '../../../..' },
        { name: 'leak', type: '1', link: `up${link}` },
      ]),
    ).rejects.toThrow('not a file of the image')
    await expect(
      pulled([
        { name: 'soft', type: '2', link },
        { name: 'leak', type: '1', link: 'soft' },
      ]),
    ).rejects.toThrow('not a file of the image')
  })

  test('cannot remove files of the host', async () => {
    writeFileSync(join(dir, 'victim'), 'v')
    await pulled([{ name: 'x/f' }, { name: 'out', type: '2', link: dir }], [{ name: 'out/.wh.victim' }])
    await expect(pulled([{ name: 'x/.wh...' }])).rejects.toThrow('removes')
    expect(existsSync(join(dir, 'victim'))).toBe(true)
  })

  test('contributes no devices and no setuid files', async () => {
    const tree = await pulled([
      { name: 'dev/sda', type: '4' },
      { name: 'dev/mem', type: '3' },
      { name: 'pipe', type: '6' },
      { name: 'su', mode: 0o6755, data: 'x' },
      { name: 'tmp/', mode: 0o3777 },
    ])
    expect(existsSync(join(tree, 'dev'))).toBe(false)
    expect(existsSync(join(tree, 'pipe'))).toBe(false)
    expect(lstatSync(join(tree, 'su')).mode & 0o7777).toBe(0o755)
    expect(lstatSync(join(tree, 'tmp')).mode & 0o7777).toBe(0o1777)
  })

  test('cannot fill the disk, neither with zeroes nor with files', async () => {
    const zeroes = gzipSync(tarOf([{ name: 'big', data: Buffer.alloc(32 * 1024 * 1024) }]))
    expect(zeroes.length).toBeLessThan(100_000)
    await expect(pulled(zeroes)).rejects.toThrow('too much data')
    const halves = [1, 2].map((n) => [{ name: `big${n}`, data: Buffer.alloc(5 * 1024 * 1024) }])
    await expect(pulled(...halves)).rejects.toThrow('too much data')
    const files = Array.from({ length: 2001 }, (_, n) => ({ name: `f${n}` }))
    await expect(pulled(files)).rejects.toThrow('too many entries')
    expect(drafts()).toEqual([])
  })

  test('has a limit for the length of all names of a layer together', async () => {
    const [long, ...entry] = header({ name: 'n'.repeat(3900), type: '6', mode: 0o644 })
    const one = Buffer.concat([long as Buffer, ...entry])
    const before = settings.now
    settings.now = { ...before, maxFiles: 1_000_000 }
    try {
      await expect(pulled(gzipSync(Buffer.alloc(one.length * 18_000, one)))).rejects.toThrow(
        'names that are too long',
      )
    } finally {
      settings.now = before
    }
    expect(drafts()).toEqual([])
  })

  test('of empty files counts towards the quota of its tenant with a block for each', async () => {
    await registry.push('test/empty', [Array.from({ length: 1500 }, (_, n) => ({ name: `f${n}` }))])
    const before = settings.now
    settings.now = { ...before, maxTenantMb: 4 }
    try {
      await expect(images.pull('test/empty', { tenant: 'ivy' })).rejects.toThrow(/more than 4 MB/)
      settings.now = { ...before, maxTenantMb: 8 }
      await images.pull('test/empty', { tenant: 'ivy' })
      await registry.push('test/more', [Array.from({ length: 1000 }, (_, n) => ({ name: `g${n}` }))])
      await expect(images.pull('test/more', { tenant: 'ivy' })).rejects.toThrow(/more than 8 MB/)
    } finally {
      settings.now = before
    }
  })

  test('waits while its tenant unpacks four others, and other tenants do not', async () => {
    for (let n = 0; n < 6; n++) await registry.push(`test/turn${n}`, [[{ name: `turn${n}`, data: 'x' }]])
    const asked = new Set<string>()
    const silent = createServer(async ({ url = '', headers }, answer) => {
      if (url.includes('/blobs/')) return void asked.add(url)
      const from = await fetch(`${registry.url}${url}`, { headers: { accept: String(headers.accept) } })
      answer.writeHead(from.status, { 'content-type': from.headers.get('content-type') ?? '' })
      answer.end(Buffer.from(await from.arrayBuffer()))
    })
    await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve))
    const url = `http://127.0.0.1:${(silent.address() as { port: number }).port}`
    const before = settings.now
    settings.now = { ...before, mirrors: [...before.mirrors, { registry: 'silent.example', url }] }
    const said: string[] = []
    const say = (line: string): void => void said.push(line)
    const pulls = Array.from({ length: 5 }, (_, n) =>
      images.pull(`silent.example/test/turn${n}`, { tenant: 'max', say }).catch(() => {}),
    )
    try {
      await expect.poll(() => said).toHaveLength(1)
      expect(said[0]).toContain('other images come first')
      await images.pull('test/turn5', { tenant: 'zoe' })
      await expect.poll(() => asked.size).toBe(4)
    } finally {
      settings.now = before
      silent.closeAllConnections()
      silent.close()
      await Promise.all(pulls)
    }
  })

  test('with a wrong digest or a truncated archive is refused', async () => {
    const archive = gzipSync(tarOf([{ name: 'f', data: 'true' }]))
    await registry.push('test/forged', [archive])
    const path = registry.blobPath(
      `sha256:${(await import('node:crypto')).createHash('sha256').update(archive).digest('hex')}`,
    )
    writeFileSync(path, gzipSync(tarOf([{ name: 'f', data: 'fals' }])))
    await expect(images.pull('test/forged')).rejects.toThrow(/other bytes|longer than/)
    const whole = tarOf([{ name: 'f', data: 'x'.repeat(5000) }])
    await expect(pulled(gzipSync(whole.subarray(0, 2048)))).rejects.toThrow('truncated')
    await expect(pulled(gzipSync(whole).subarray(0, 40))).rejects.toThrow('not a valid archive')
    await expect(pulled(Buffer.from('no archive'))).rejects.toThrow('not a valid archive')
    expect(drafts()).toEqual([])
  })

  test('with circular links, or files as directories, is refused', async () => {
    await expect(
      pulled([{ name: 'a', type: '2', link: 'b' }, { name: 'b', type: '2', link: 'a' }, { name: 'a/f' }]),
    ).rejects.toThrow('too many links')
    await expect(
      pulled([
        { name: 'f', data: 'x' },
        { name: 'f/g', data: 'x' },
      ]),
    ).rejects.toThrow('below a file')
  })
})

describe.skipIf(!hasRegistry)('a registry with passwords', () => {
  test('requires valid credentials', async () => {
    // The password is `secret`.
    const closed = await TestRegistry.start(
      'me:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n',
    )
    try {
      const authorization = `Basic ${Buffer.from('me:secret').toString('base64')}`
      const digest = await closed.push('library/private:1', [[{ name: 'f' }]], { authorization })
      const mirrors = [{ registry: 'docker.io', url: closed.url }]
      const own = new Images({
        dir: join(dir, 'own'),
        agent: '',
        settings: () => ({ ...settings.now, mirrors }),
      })
      const credentials = { username: 'me', password: 'secret' }
      await expect(own.pull('private:1')).rejects.toThrow('does not give out')
      await expect(own.pull('private:1', { credentials: { ...credentials, password: 'x' } })).rejects.toThrow(
        'does not give out',
      )
      expect((await own.pull('private:1', { credentials })).digest).toBe(digest)
      // The tree exists now, and still needs the password.
      await expect(own.pull('private:1')).rejects.toThrow('does not give out')
      await expect(own.pull(`private@${digest}`)).rejects.toThrow('does not give out')
    } finally {
      await closed.close()
    }
  })
})
