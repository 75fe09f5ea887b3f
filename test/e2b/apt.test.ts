import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { canHaveRoot } from '../root/root-host.ts'
import { FULL } from '../server/test-server.ts'
import { client, type Loose, type World, world } from './kit.ts'

/** `apt-get` as people use it: a signed repository over HTTP, through the proxy, into the writable root of a sandbox of E2B's API. */

/** An address of the host's loopback; 127.0.0.1 is the sandbox's own. */
const MIRROR = '127.0.0.2'
const base = mkdtempSync(join(tmpdir(), 'rf-apt-'))
const root = join(base, 'repository')
const gpg = (...args: readonly string[]): Buffer =>
  execFileSync('gpg', ['--homedir', join(base, 'gpg'), '--batch', '--yes', '-q', ...args], {
    stdio: ['ignore', 'pipe', 'ignore'],
  })

/** A package that needs another one, so that apt has something to resolve. */
function debianPackage(name: string, depends: string): void {
  const tree = join(base, name)
  for (const dir of ['DEBIAN', 'usr/bin']) mkdirSync(join(tree, dir), { recursive: true })
  const control = `Package: ${name}\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@example.org>\n${depends}Description: a\n`
  writeFileSync(join(tree, 'DEBIAN/control'), control)
  writeFileSync(join(tree, 'usr/bin', name), `#!/bin/sh\necho ${name} runs\n`, { mode: 0o755 })
  const file = join(root, 'pool', `${name}_1.0_all.deb`)
  execFileSync('dpkg-deb', ['--root-owner-group', '-b', tree, file], { stdio: 'ignore' })
}

/** The index that a mirror has: `Packages`, and `InRelease` with its hash and our signature. */
function repository(): void {
  const index = join(root, 'dists/stable/main/binary-all')
  for (const dir of [join(root, 'pool'), index, join(base, 'gpg')])
    mkdirSync(dir, { recursive: true, mode: 0o700 })
  debianPackage('rf-needed', '')
  debianPackage('rf-wanted', 'Depends: rf-needed\n')
  const packages = ['rf-needed', 'rf-wanted'].map((name) => {
    const path = `pool/${name}_1.0_all.deb`
    const bytes = readFileSync(join(root, path))
    const fields = execFileSync('dpkg-deb', ['-f', join(root, path)], { encoding: 'utf8' })
    const hash = createHash('sha256').update(bytes).digest('hex')
    return `${fields}Filename: ${path}\nSize: ${bytes.length}\nSHA256: ${hash}\n`
  })
  writeFileSync(join(index, 'Packages'), packages.join('\n'))
  const hash = createHash('sha256')
    .update(readFileSync(join(index, 'Packages')))
    .digest('hex')
  const size = statSync(join(index, 'Packages')).size
  const release = `Origin: test\nSuite: stable\nCodename: stable\nArchitectures: all amd64 arm64\nComponents: main\nDate: ${new Date().toUTCString()}\nSHA256:\n ${hash} ${size} main/binary-all/Packages\n`
  writeFileSync(join(root, 'dists/stable/Release'), release)
  gpg('--passphrase', '', '--quick-generate-key', 'test <test@example.org>', 'ed25519', 'sign', 'never')
  const inRelease = join(root, 'dists/stable/InRelease')
  gpg('--clearsign', '-o', inRelease, join(root, 'dists/stable/Release'))
}

describe.runIf(FULL && canHaveRoot)('apt-get in a sandbox', () => {
  let mirror: Server
  let here: World
  let sandbox: Loose
  let url = ''
  beforeAll(async () => {
    repository()
    mirror = createServer((request, answer) => {
      try {
        answer.end(readFileSync(join(root, new URL(request.url ?? '/', 'http://x').pathname)))
      } catch {
        answer.writeHead(404).end()
      }
    }).listen(0, MIRROR)
    await new Promise((resolve) => mirror.once('listening', resolve))
    const { port } = mirror.address() as AddressInfo
    url = `http://${MIRROR}:${port}`
    const hosts = `allow_hosts = ["${MIRROR}:${port}"]\n`
    here = await world(
      `[network]\n${hosts}allow_private = ["${MIRROR}"]\n[[tenant]]\nname = "default"\n${hosts}`,
    )
    const e2b = await client('e2b')
    sandbox = await e2b.Sandbox.create(here.options)
  }, 120_000)
  afterAll(async () => {
    await sandbox?.kill()
    await here?.close()
    mirror?.close()
    execFileSync('gpgconf', ['--homedir', join(base, 'gpg'), '--kill', 'all'])
    rmSync(base, { recursive: true, force: true })
  }, 60_000)

  const asRoot = (line: string): Promise<Loose> =>
    sandbox.commands.run(line, { user: 'root', timeoutMs: 120_000 })

  test('updates from a signed index and installs a package with what it needs', {
    timeout: 240_000,
  }, async () => {
    await sandbox.files.write('/usr/share/keyrings/test.gpg', new Blob([new Uint8Array(gpg('--export'))]), {
      user: 'root',
    })
    await asRoot('rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*')
    const source = `deb [signed-by=/usr/share/keyrings/test.gpg] ${url} stable main`
    await sandbox.files.write('/etc/apt/sources.list', `${source}\n`, { user: 'root' })
    const { stdout } = await asRoot(
      'apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y rf-wanted && rf-wanted && rf-needed',
    )
    expect(stdout).toMatch(/rf-wanted runs\nrf-needed runs\n$/)
    expect((await sandbox.commands.run('rf-wanted; id -un')).stdout).toBe('rf-wanted runs\nuser\n')
  })

  test('an index that somebody changed on its way is refused', { timeout: 240_000 }, async () => {
    const file = join(root, 'dists/stable/InRelease')
    writeFileSync(file, readFileSync(file, 'utf8').replace('Origin: test', 'Origin: evil'))
    const line = 'rm -rf /var/lib/apt/lists/*; apt-get update -o APT::Update::Error-Mode=any'
    await expect(asRoot(line)).rejects.toMatchObject({
      exitCode: 100,
      stderr: expect.stringMatching(/BADSIG|signatures were invalid/),
    })
  })
})
