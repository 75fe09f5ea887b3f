import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { connect } from 'node:tls'
import { afterAll, describe, expect, test } from 'vitest'
import { type Process, startProcess } from './process.ts'
import { startTestServer } from './test-server.ts'

/** What an operator sees of a running server: its log, its metrics, its certificate. */

const base = mkdtempSync(join(tmpdir(), 'rf-operations-'))
afterAll(() => rmSync(base, { recursive: true, force: true }))

async function until(isTrue: () => boolean | Promise<boolean>): Promise<void> {
  for (let tries = 0; tries < 400 && !(await isTrue()); tries++)
    await new Promise((resolve) => setTimeout(resolve, 25))
}

async function stop(server: Process): Promise<void> {
  server.child.kill('SIGTERM')
  await server.ended
}

describe('--log-format json', () => {
  const CANARY = 'canary-5b1f0c'

  test('writes one line per request and record, without secrets', async () => {
    const home = join(base, 'log')
    mkdirSync(home)
    const server = await startProcess(home, { args: ['--log-format', 'json'] })
    const made = await server.call('POST', '/v1/sandboxes', {
      body: { backend: 'bubblewrap', env: { TOKEN: CANARY }, metadata: { note: CANARY } },
    })
    expect(made.status).toBe(201)
    const { id, token } = made.json
    const ran = await server.call('POST', `/v1/sandboxes/${id}/exec`, { body: { argv: ['echo', CANARY] } })
    expect(ran.json.stdout).toContain(CANARY)
    await server.call('GET', `/v1/sandboxes/${id}/files?path=/${CANARY}`)
    await server.call('GET', `/${CANARY}?key=${CANARY}`)
    await server.call('GET', '/v1/sandboxes', { key: `rf_${CANARY}` })
    await server.call('GET', '/healthz', { headers: { host: `${CANARY}.example` } })
    await stop(server)
    const said = server.said()
    const lines = said
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
    const requests = lines.filter(({ type }) => type === 'request')
    expect(requests.map(({ method, route, status }) => [method, route, status])).toEqual([
      ['POST', '/v1/sandboxes', 201],
      ['POST', '/v1/sandboxes/:id/exec', 200],
      ['GET', '/v1/sandboxes/:id/files', expect.any(Number)],
      ['GET', null, 404],
      ['GET', '/v1/sandboxes', 401],
      ['GET', '/healthz', expect.any(Number)],
    ])
    expect(requests[0]).toMatchObject({
      time: expect.stringMatching(/^\d{4}-/),
      request_id: made.headers.get('x-request-id'),
      tenant: expect.any(String),
      key_id: expect.stringMatching(/^key_/),
      duration_ms: expect.any(Number),
    })
    const events = lines.filter(({ type }) => type === 'event')
    expect(events).toContainEqual(expect.objectContaining({ event: 'SandboxState', sandbox_id: id }))
    expect(events).toContainEqual(expect.objectContaining({ event: 'Exec', sandbox_id: id }))
    expect(lines).toContainEqual(
      expect.objectContaining({ type: 'message', message: expect.stringContaining('shutting') }),
    )
    for (const secret of [CANARY, server.key, token]) expect(said).not.toContain(secret)
  }, 60_000)

  test('rejects an unknown format', async () => {
    const home = join(base, 'other')
    mkdirSync(home)
    await expect(startProcess(home, { args: ['--log-format', 'xml'] })).rejects.toThrow(
      /expected text or json/,
    )
  })
})

test('metrics count decisions, records, the store and webhooks; their key has no other access', async () => {
  const hook = createServer((_, response) => response.writeHead(500).end())
  await new Promise<void>((resolve) => hook.listen(0, '127.0.0.1', resolve))
  const { port } = hook.address() as AddressInfo
  const server = await startTestServer('[network]\nallow_private = ["127.0.0.1"]\n')
  try {
    await server.call('POST', '/v1/webhooks', { body: { url: `http://127.0.0.1:${port}/`, events: [] } })
    const { id } = (await server.call('POST', '/v1/sandboxes', { body: { backend: 'mock' } })).json
    await server.call('POST', `/v1/sandboxes/${id}/exec`, { body: { command: 'rm -rf /' } })
    const key = await server.key(['metrics'])
    const text = async (): Promise<string> => (await server.call('GET', '/metrics', { key })).text
    await until(async () => /ringfence_webhook_deliveries_total\{result="refused"\} \d/.test(await text()))
    const said = await text()
    expect(said).toMatch(/^ringfence_webhook_deliveries_total\{result="refused"\} [1-9]/m)
    expect(said).toMatch(/^ringfence_decisions_total\{action="deny"\} [1-9]/m)
    expect(said).toMatch(/^ringfence_audit_records_total\{event="SandboxState"\} [1-9]/m)
    expect(said).toMatch(/^ringfence_store_seconds_count\{operation="write"\} [1-9]/m)
    expect((await server.call('GET', '/v1/sandboxes', { key })).status).toBe(403)
    const reader = await server.key(['create', 'exec', 'read'])
    expect((await server.call('GET', '/metrics', { key: reader })).status).toBe(403)
  } finally {
    await server.close()
    hook.close()
  }
}, 60_000)

describe('a reload', () => {
  const cert = join(base, 'cert.pem')
  const key = join(base, 'key.pem')
  const issue = (name: string): void =>
    void execFileSync(
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
        '-subj',
        `/CN=${name}`,
        '-keyout',
        key,
        '-out',
        cert,
      ],
      { stdio: 'ignore' },
    )
  const nameAt = (port: number): Promise<string> =>
    new Promise((resolve, reject) => {
      const socket = connect({ port, host: '127.0.0.1', rejectUnauthorized: false }, () => {
        resolve(String(socket.getPeerCertificate().subject.CN))
        socket.destroy()
      })
      socket.on('error', reject)
    })

  test('uses the new certificate, and keeps the old one if the new one is invalid', async () => {
    issue('first')
    const server = await startTestServer('', { tlsCert: cert, tlsKey: key })
    try {
      const { port, reload } = server.server
      expect(await nameAt(port)).toBe('first')
      issue('second')
      expect(await nameAt(port)).toBe('first')
      await reload()
      expect(await nameAt(port)).toBe('second')
      rmSync(key)
      await expect(reload()).rejects.toThrow(/certificate .* cannot be used/)
      expect(await nameAt(port)).toBe('second')
    } finally {
      await server.close()
    }
  })
})
