import { createHash, randomBytes } from 'node:crypto'
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { maxConnections } from '../../src/host/net/loopback.ts'
import { Sandbox } from '../../src/index.ts'
import { FULL, text } from './persistent-sandbox.ts'

/** The proxy socket of a sandbox belongs to the host, so it must carry connections and nothing else. */

/** TCP sockets that this process has open. */
const served = (): number => process.getActiveResourcesInfo().filter((kind) => kind.startsWith('TCP')).length
const IDLE = served()
const BYTES = (FULL ? 256 : 16) * 1024 * 1024
const hashOf = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex')

/** A sandbox that can reach only this server. */
async function sandboxFor(server: Server) {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const at = `localhost:${(server.address() as AddressInfo).port}`
  const home = mkdtempSync(join(tmpdir(), 'rf-bulk-'))
  const config = join(home, 'ringfence.toml')
  const workspace = mkdtempSync(join(tmpdir(), 'rf-bulk-'))
  writeFileSync(config, '[network]\nallow_private = ["localhost"]\n')
  const network = { mode: 'fetch' as const, allowHosts: [at] }
  const sandbox = await Sandbox.create(
    { workspace, network },
    { config, env: { HOME: home, RINGFENCE_HOME: join(home, 'state') } },
  )
  const close = async (): Promise<void> => {
    await sandbox.close()
    server.close()
    for (const dir of [home, workspace]) rmSync(dir, { recursive: true, force: true })
  }
  return { sandbox, at, workspace, close }
}

test('four parallel downloads and four parallel uploads arrive unchanged', { timeout: 120_000 }, async () => {
  const all = randomBytes(BYTES)
  const got = new Set<string>()
  const server = createServer(async (request, response) => {
    const hash = createHash('sha256')
    for await (const chunk of request) hash.update(chunk as Buffer)
    got.add(hash.digest('hex'))
    response.end(request.method === 'GET' ? all : 'thanks')
  })
  const { sandbox, at, workspace, close } = await sandboxFor(server)
  const fetches = [1, 2, 3, 4].map((n) => `curl -sS --noproxy '' http://${at}/ -o got${n} &`)
  const sends = [1, 2, 3, 4].map((n) => `curl -sS --noproxy '' http://${at}/ -T got${n} &`)
  const lines = [...fetches, 'wait', 'sha256sum got1 got2 got3 got4', ...sends, 'wait']
  writeFileSync(join(workspace, 'move.sh'), `${lines.join('\n')}\n`)
  const { stdout, stderr } = await sandbox.exec(['bash', join(workspace, 'move.sh')])
  const hashes = text(stdout).match(/[0-9a-f]{64}/g) ?? []
  expect(hashes, text(stderr)).toEqual(Array(4).fill(hashOf(all)))
  expect([...got]).toContain(hashOf(all))
  expect(got.size, 'nothing else but empty bodies arrived').toBe(2)
  await close()
})

test('the proxy connection leaks no descriptors, variables or capabilities to a command, and is closed with the sandbox', async () => {
  // Connections of the test before may still be closing.
  await expect.poll(served, { timeout: 20_000 }).toBeLessThanOrEqual(IDLE)
  const before = served()
  const { sandbox, at, workspace, close } = await sandboxFor(
    createServer((_request, response) => response.end('hello')),
  )
  const look = `curl -sS --noproxy '' http://${at}/; ls /proc/self/fd | wc -l; env | grep -c NODE_CHANNEL; grep -c '^Cap[A-Za-z]*:.*[1-9a-f]' /proc/self/status; exit 0`
  writeFileSync(join(workspace, 'look.sh'), look)
  const { stdout } = await sandbox.exec(['bash', join(workspace, 'look.sh')])
  // Three standard streams and the listed directory; then no NODE_CHANNEL variable, and no capability.
  expect(text(stdout)).toBe('hello4\n0\n0\n')
  expect(served(), 'the server of this test and the sandbox').toBeGreaterThan(before + 1)
  await close()
  await expect.poll(served, { timeout: 20_000 }).toBe(before)
})

test('idle connections to the proxy are limited, and later requests still work', async () => {
  const most = maxConnections()
  const { sandbox, at, workspace, close } = await sandboxFor(
    createServer((_request, response) => response.end('hello')),
  )
  const many = `import os, resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
for _ in range(${most + 500}):
    held.append(socket.create_connection(('127.0.0.1', 3128)))
sys.stdout.write('held\\n')
sys.stdout.flush()
sys.stdin.read()
`
  writeFileSync(join(workspace, 'many.py'), many)
  const before = readdirSync('/proc/self/fd').length
  const running = await sandbox.spawn(['python3', join(workspace, 'many.py')], { stdin: true })
  const held = (): number => readdirSync('/proc/self/fd').length - before
  await expect.poll(held, { timeout: 20_000 }).toBeGreaterThan(most - 10)
  expect(held()).toBeLessThan(most + 50)
  running.endInput()
  await running.result
  const { stdout } = await sandbox.exec(['curl', '-sS', '--noproxy', '', `http://${at}/`], {
    approve: () => true,
  })
  expect(text(stdout)).toBe('hello')
  await close()
})

test('a client that sends its request after a delay is served', async () => {
  const { sandbox, at, workspace, close } = await sandboxFor(
    createServer((_, response) => response.end('late')),
  )
  const ask = `CONNECT ${at} HTTP/1.1\\r\\nHost: ${at}\\r\\n\\r\\n`
  const lines = `import socket,time
s=socket.create_connection(("127.0.0.1",3128)); time.sleep(1.5)
s.sendall(b"${ask}"); print(s.recv(99).decode()[:12])`
  writeFileSync(join(workspace, 'late.py'), lines)
  const { stdout, stderr } = await sandbox.exec(['python3', join(workspace, 'late.py')])
  expect(text(stdout), text(stderr)).toBe('HTTP/1.1 200\n')
  await close()
})
