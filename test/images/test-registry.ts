import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'

/** Debian's `docker-registry` on the loopback, and images that tests create. */

export const hasRegistry = existsSync('/usr/bin/docker-registry')

/** One entry of a layer. */
export type Entry = {
  readonly name: string
  readonly type?: string
  readonly mode?: number
  readonly uid?: number
  readonly link?: string
  readonly data?: string | Uint8Array
  /** The size in the header, if it is not the content's. */
  readonly size?: number
}

const BLOCK = 512

/** A tar archive in the format of other programs. */
export function tarOf(entries: readonly Entry[]): Buffer {
  const blocks = entries.flatMap((entry) => {
    const data = Buffer.from(entry.data ?? '')
    const head = Buffer.alloc(BLOCK)
    const octal = (value: number, width: number): string => `${value.toString(8).padStart(width - 1, '0')}\0`
    head.write(entry.name.slice(0, 100), 0)
    head.write(octal(entry.mode ?? 0o644, 8), 100)
    head.write(octal(entry.uid ?? 0, 8), 108)
    head.write(octal(entry.uid ?? 0, 8), 116)
    head.write(octal(entry.size ?? data.length, 12), 124)
    head.write(octal(0, 12), 136)
    head.write('        ', 148)
    head.write(entry.type ?? (entry.name.endsWith('/') ? '5' : '0'), 156)
    head.write((entry.link ?? '').slice(0, 100), 157)
    head.write('ustar\u000000', 257)
    const sum = head.reduce((total, byte) => total + byte, 0)
    head.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148)
    return [head, data, Buffer.alloc((BLOCK - (data.length % BLOCK)) % BLOCK)]
  })
  return Buffer.concat([...blocks, Buffer.alloc(2 * BLOCK)])
}

const digestOf = (bytes: Uint8Array): string => `sha256:${createHash('sha256').update(bytes).digest('hex')}`

async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }
  await new Promise<void>((resolve) => server.close(() => resolve()))
  return port
}

/** A running registry. */
export class TestRegistry {
  readonly url: string
  readonly #dir: string
  readonly #process: ChildProcess

  private constructor(url: string, dir: string, process: ChildProcess) {
    this.url = url
    this.#dir = dir
    this.#process = process
  }

  /** `users`: the lines of a password file, which then every request needs. */
  static async start(users?: string): Promise<TestRegistry> {
    const dir = mkdtempSync(join(tmpdir(), 'rf-registry-'))
    const port = await freePort()
    if (users !== undefined) writeFileSync(join(dir, 'users'), users)
    const auth =
      users === undefined ? '' : `auth:\n  htpasswd:\n    realm: test\n    path: ${join(dir, 'users')}\n`
    const storage = `storage:\n  filesystem:\n    rootdirectory: ${dir}\n`
    const log = 'log:\n  level: error\n  accesslog:\n    disabled: true\n'
    const http = `http:\n  addr: 127.0.0.1:${port}\n`
    writeFileSync(join(dir, 'config.yml'), `version: 0.1\n${log}${storage}${http}${auth}`)
    const child = spawn('/usr/bin/docker-registry', ['serve', join(dir, 'config.yml')], { stdio: 'ignore' })
    const registry = new TestRegistry(`http://127.0.0.1:${port}`, dir, child)
    for (let tries = 0; tries < 200; tries++) {
      const isUp = await fetch(`${registry.url}/v2/`).then(
        () => true,
        () => false,
      )
      if (isUp) return registry
      await new Promise((resolve) => setTimeout(resolve, 25))
    }
    throw new Error('the registry does not start')
  }

  async #blob(name: string, bytes: Uint8Array, headers: Record<string, string>): Promise<object> {
    const started = await fetch(`${this.url}/v2/${name}/blobs/uploads/`, { method: 'POST', headers })
    const location = new URL(started.headers.get('location') ?? '', this.url)
    location.searchParams.set('digest', digestOf(bytes))
    const type = { ...headers, 'content-type': 'application/octet-stream' }
    const put = await fetch(location, { method: 'PUT', headers: type, body: bytes })
    if (put.status !== 201) throw new Error(`the registry answers ${put.status}`)
    return { digest: digestOf(bytes), size: bytes.length }
  }

  /** Pushes an image and returns the digest of its manifest. */
  async push(
    name: string,
    layers: readonly (readonly Entry[] | Buffer)[],
    { config = {}, authorization }: { readonly config?: object; readonly authorization?: string } = {},
  ): Promise<string> {
    const [repository = '', tag = 'latest'] = name.split(':')
    const headers: Record<string, string> = authorization ? { authorization } : {}
    const described: object[] = []
    for (const layer of layers) {
      const bytes = Buffer.isBuffer(layer) ? layer : gzipSync(tarOf(layer as readonly Entry[]))
      const mediaType = 'application/vnd.oci.image.layer.v1.tar+gzip'
      described.push({ ...(await this.#blob(repository, bytes, headers)), mediaType })
    }
    const json = Buffer.from(JSON.stringify({ architecture: 'amd64', os: 'linux', config }))
    const mediaType = 'application/vnd.oci.image.manifest.v1+json'
    const about = { mediaType: 'application/vnd.oci.image.config.v1+json' }
    const manifest = Buffer.from(
      JSON.stringify({
        schemaVersion: 2,
        mediaType,
        config: { ...(await this.#blob(repository, json, headers)), ...about },
        layers: described,
      }),
    )
    const put = await fetch(`${this.url}/v2/${repository}/manifests/${tag}`, {
      method: 'PUT',
      headers: { ...headers, 'content-type': mediaType },
      body: manifest,
    })
    if (put.status !== 201) throw new Error(`the registry answers ${put.status}: ${await put.text()}`)
    return digestOf(manifest)
  }

  /** Where the registry keeps a blob. */
  blobPath(digest: string): string {
    const hash = digest.slice('sha256:'.length)
    return join(this.#dir, 'docker/registry/v2/blobs/sha256', hash.slice(0, 2), hash, 'data')
  }

  async close(): Promise<void> {
    const ended = new Promise((resolve) => this.#process.once('exit', resolve))
    this.#process.kill('SIGKILL')
    await ended
    rmSync(this.#dir, { recursive: true, force: true })
  }
}

const APPLETS = [
  ...[
    'sh',
    'ls',
    'cat',
    'cp',
    'mv',
    'rm',
    'ln',
    'mkdir',
    'touch',
    'chmod',
    'chown',
    'tar',
    'gzip',
    'id',
    'env',
  ],
  ...[
    'sleep',
    'true',
    'false',
    'echo',
    'head',
    'wc',
    'stat',
    'grep',
    'sed',
    'find',
    'test',
    'date',
    'dirname',
  ],
]

/** A small image that can run the steps of builds: busybox, and this machine's bash with its libraries. */
export function smallImage(): readonly Entry[] {
  const libraries = execFileSync('ldd', ['/bin/bash'], { encoding: 'utf8' })
    .split('\n')
    .flatMap((line) => /(\/\S+) \(0x/.exec(line)?.[1] ?? [])
  const program = (path: string, from = path): Entry => ({
    name: path.slice(1),
    mode: 0o755,
    data: readFileSync(from),
  })
  return [
    ...['bin/', 'usr/', 'usr/bin/', 'etc/', 'root/', 'home/'].map((name) => ({ name, mode: 0o755 })),
    { name: 'tmp/', mode: 0o1777 },
    program('/bin/busybox'),
    program('/bin/bash'),
    ...libraries.map((path) => program(path)),
    ...APPLETS.map((name) => ({ name: `bin/${name}`, type: '2', link: 'busybox' })),
    { name: 'etc/passwd', data: 'root:x:0:0:root:/root:/bin/bash\n' },
    { name: 'etc/group', data: 'root:x:0:\n' },
    { name: 'etc/os-release', data: 'ID=small\n' },
  ]
}
