import { execFileSync } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { ClusterKey } from '../../src/cluster/identity.ts'
import { startServer } from '../../src/compose/serve.ts'

/** Files with secrets that other users can read are refused, before anything is served. */

let dir: string
let state: string
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'rf-private-'))
  state = join(dir, 'state')
  mkdirSync(state, { mode: 0o700 })
})
afterEach(() => rmSync(dir, { recursive: true, force: true }))

/** Starts a server and stops it again. */
async function serve(more: object = {}): Promise<void> {
  const env = { PATH: process.env.PATH, HOME: dir, RINGFENCE_HOME: state }
  const server = await startServer({ port: 0, env, cwd: dir, ...more })
  await server.close()
}

const refusal = (file: string) => ({
  code: 'invalid-config',
  message: expect.stringContaining(`is not private: other users may read or write \`${file}\``),
  hint: `chmod 600 '${file}'`,
})

test.each(['sandbox-tokens.key', 'webhook-secrets.key', 'keys/trail.json'])(
  'the server does not start if other users can access %s',
  async (name) => {
    await serve()
    const file = join(state, name)
    expect(existsSync(file)).toBe(true)
    for (const mode of [0o644, 0o640, 0o606]) {
      chmodSync(file, mode)
      await expect(serve(), mode.toString(8)).rejects.toMatchObject(refusal(file))
    }
    chmodSync(file, 0o600)
    await serve()
  },
)

test('the server does not start if other users can access the private key of its certificate', async () => {
  const [tlsKey, tlsCert] = [join(dir, 'key.pem'), join(dir, 'cert.pem')]
  const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '1']
  execFileSync(
    'openssl',
    ['req', '-x509', ...curve, '-keyout', tlsKey, '-out', tlsCert, '-subj', '/CN=localhost'],
    { stdio: 'ignore' },
  )
  chmodSync(tlsKey, 0o644)
  await expect(serve({ tlsKey, tlsCert })).rejects.toMatchObject(refusal(tlsKey))
  chmodSync(tlsKey, 0o600)
  chmodSync(tlsCert, 0o644)
  await serve({ tlsKey, tlsCert })
})

test('a cluster key that other users can access is refused', () => {
  const file = join(dir, 'cluster.key')
  ClusterKey.create().save(file)
  expect(ClusterKey.load(file)).toBeDefined()
  chmodSync(file, 0o644)
  expect(() => ClusterKey.load(file)).toThrow(expect.objectContaining(refusal(file)))
})
