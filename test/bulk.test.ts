import { createHash, randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { Sandbox } from '../src/index.ts'
import { FULL, text } from './persistent.ts'

/** Much data through a sandbox's only way out: memory is used again on the way, and no byte may notice. */

const BYTES = (FULL ? 256 : 16) * 1024 * 1024
const hashOf = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex')

test('four downloads and four uploads at once, byte for byte', { timeout: 120_000 }, async () => {
  const all = randomBytes(BYTES)
  const got = new Set<string>()
  const server = createServer(async (request, response) => {
    const hash = createHash('sha256')
    for await (const chunk of request) hash.update(chunk as Buffer)
    got.add(hash.digest('hex'))
    response.end(request.method === 'GET' ? all : 'thanks')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const at = `localhost:${(server.address() as AddressInfo).port}`
  const home = mkdtempSync(join(tmpdir(), 'rf-bulk-'))
  const config = join(home, 'ringfence.toml')
  const workspace = mkdtempSync(join(tmpdir(), 'rf-bulk-'))
  writeFileSync(config, '[network]\nallow_private = ["localhost"]\n')
  const fetches = [1, 2, 3, 4].map((n) => `curl -sS --noproxy '' http://${at}/ -o got${n} &`)
  const sends = [1, 2, 3, 4].map((n) => `curl -sS --noproxy '' http://${at}/ -T got${n} &`)
  const lines = [...fetches, 'wait', 'sha256sum got1 got2 got3 got4', ...sends, 'wait']
  writeFileSync(join(workspace, 'move.sh'), `${lines.join('\n')}\n`)
  const network = { mode: 'fetch' as const, allowHosts: [at] }
  const sandbox = await Sandbox.create(
    { workspace, network },
    { config, env: { HOME: home, RINGFENCE_HOME: join(home, 'state') } },
  )
  const { stdout, stderr } = await sandbox.exec(['bash', join(workspace, 'move.sh')])
  const hashes = text(stdout).match(/[0-9a-f]{64}/g) ?? []
  expect(hashes, text(stderr)).toEqual(Array(4).fill(hashOf(all)))
  expect([...got]).toContain(hashOf(all))
  expect(got.size, 'nothing else but empty bodies arrived').toBe(2)
  await sandbox.close()
  server.close()
  for (const dir of [home, workspace]) rmSync(dir, { recursive: true, force: true })
})
