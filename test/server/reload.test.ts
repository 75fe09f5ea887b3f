import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { request } from 'node:https'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { FULL, startTestServer } from './test-server.ts'

const TIMES = FULL ? 1000 : 25

test(`${TIMES} reloads under load fail no request, and every record names its policy`, async () => {
  const home = await startTestServer('[server]\nrequests_per_second = 100000\n')
  const file = join(home.dir, 'ringfence.toml')
  const made = await home.call('POST', '/v1/sandboxes', { body: { backend: 'mock' } })
  const policies = new Set<string>()
  let over = false
  let ran = 0
  const client = async (): Promise<void> => {
    while (!over) {
      const { status, text } = await home.call('POST', `/v1/sandboxes/${made.json.id}/exec`, {
        body: { argv: ['true'] },
      })
      expect(status, text).toBe(200)
      ran++
    }
  }
  const clients = Array.from({ length: 4 }, client)
  for (let time = 0; time < TIMES; time++) {
    const broken = time % 5 === 4
    writeFileSync(
      file,
      broken
        ? 'broken = ['
        : `[policy]\nmax_cpus = ${1 + (time % 7)}\n[server]\nrequests_per_second = 100000\n`,
    )
    const { status, json } = await home.call('POST', '/v1/reload', { body: {} })
    expect(status).toBe(broken ? 400 : 200)
    if (!broken) policies.add(json.policy)
  }
  over = true
  await Promise.all(clients)
  expect(policies.size).toBe(7)
  let execs = 0
  for (let cursor = 0; ; ) {
    const { json } = await home.call(
      'GET',
      `/v1/audit?sandbox_id=${made.json.id}&limit=1000&cursor=${cursor}`,
    )
    for (const record of json.items) {
      expect(record.policy).toMatch(/^[0-9a-f]{16}$/)
      if (record.event === 'Exec' && record.state === 'ended') execs++
    }
    if (json.next === null) break
    cursor = Number(json.next)
  }
  expect(execs).toBe(ran)
  expect((await home.call('GET', '/v1/audit/verify')).json).toMatchObject({ ok: true })
  await home.close()
}, 3_600_000)

test('TLS works on any address with a certificate', async () => {
  const scratch = await startTestServer()
  const [cert, key] = [join(scratch.dir, 'cert.pem'), join(scratch.dir, 'key.pem')]
  const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1']
  execFileSync(
    'openssl',
    [
      'req',
      '-x509',
      '-newkey',
      'ec',
      '-pkeyopt',
      'ec_paramgen_curve:prime256v1',
      '-nodes',
      '-days',
      '1',
      '-keyout',
      key,
      '-out',
      cert,
      ...subject,
    ],
    { stdio: 'ignore' },
  )
  const home = await startTestServer('', { host: '127.0.0.1', tlsCert: cert, tlsKey: key })
  const status = await new Promise<number>((resolve, reject) => {
    const asked = request(`${home.server.url}/healthz`, { rejectUnauthorized: false }, (response) => {
      response.resume()
      resolve(response.statusCode ?? 0)
    })
    asked.on('error', reject).end()
  })
  expect(home.server.url).toMatch(/^https:/)
  expect(status).toBe(200)
  await home.close()
  await scratch.close()
})
