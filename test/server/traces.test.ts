import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, describe, expect, test } from 'vitest'
import { startTestServer } from './test-server.ts'

/** A span as OTLP over HTTP with JSON has it. */
type SentSpan = {
  readonly traceId: string
  readonly spanId: string
  readonly parentSpanId?: string
  readonly name: string
  readonly attributes: readonly { key: string; value: { stringValue?: string; intValue?: number } }[]
  readonly status: { code?: number; message?: string }
}

const received: string[] = []
const collector = createServer((request, response) => {
  const parts: Buffer[] = []
  request.on('data', (part) => parts.push(part))
  request.on('end', () => {
    received.push(Buffer.concat(parts).toString())
    response.writeHead(200, { 'content-type': 'application/json' }).end('{}')
  })
}).listen(0, '127.0.0.1')
afterAll(() => void collector.close())
const address = (): string => `http://127.0.0.1:${(collector.address() as AddressInfo).port}`

const spans = (): readonly SentSpan[] =>
  received.flatMap((text) =>
    JSON.parse(text).resourceSpans.flatMap((resource: { scopeSpans: { spans: SentSpan[] }[] }) =>
      resource.scopeSpans.flatMap((scope) => scope.spans),
    ),
  )
const attribute = (span: SentSpan | undefined, name: string): string | number | undefined => {
  const value = span?.attributes.find(({ key }) => key === name)?.value
  return value?.stringValue ?? value?.intValue
}

describe('traces', () => {
  const CANARY = 'canary-c41d7'
  const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'
  const CALLER = '00f067aa0ba902b7'

  test('follow a request into the sandbox within the caller’s trace, without secrets', async () => {
    const server = await startTestServer(`[telemetry]\ntraces = "${address()}"\n`)
    const headers = { traceparent: `00-${TRACE}-${CALLER}-01` }
    const made = await server.call('POST', '/v1/sandboxes', {
      headers,
      body: { backend: 'bubblewrap', env: { TOKEN: CANARY } },
    })
    expect(made.status).toBe(201)
    const { id } = made.json
    const line = `echo $TRACEPARENT ${CANARY}; exit 7`
    const ran = await server.call('POST', `/v1/sandboxes/${id}/exec`, {
      headers,
      body: { argv: ['sh', '-c', line] },
    })
    await server.call('POST', `/v1/sandboxes/${id}/exec`, {
      headers,
      body: { argv: ['rm', '-rf', '/', CANARY] },
    })
    await server.call('GET', `/v1/sandboxes/${id}/files?path=/${CANARY}`, { headers })
    await server.close()

    expect(received.join('')).not.toContain(CANARY)
    expect(new Set(spans().map(({ traceId }) => traceId))).toEqual(new Set([TRACE]))
    const named = (name: string): SentSpan | undefined => spans().find((span) => span.name === name)
    const create = named('POST /v1/sandboxes')
    expect(create?.parentSpanId).toBe(CALLER)
    expect(attribute(create, 'http.response.status_code')).toBe(201)
    expect(named('sandbox.create')?.parentSpanId).toBe(create?.spanId)
    expect(attribute(named('sandbox.create'), 'ringfence.sandbox_id')).toBe(id)
    const exec = spans().find((span) => attribute(span, 'ringfence.outcome') !== undefined)
    expect(exec?.name).toBe('sandbox.exec')
    expect(attribute(exec, 'process.exit.code')).toBe(7)
    // The program in the sandbox received the span that started it.
    expect(ran.json.stdout).toBe(`00-${TRACE}-${exec?.spanId}-01 ${CANARY}\n`)
    const refused = spans().find((span) => span.name === 'sandbox.exec' && span.status.code === 2)
    expect(refused?.status.message).toBe('forbidden-command')
  })

  test('start a new trace for an invalid header, and are off without a collector', async () => {
    received.length = 0
    const server = await startTestServer(`[telemetry]\ntraces = "${address()}"\n`)
    await server.call('GET', '/v1/sandboxes', { headers: { traceparent: `00-${TRACE}-0000000000000000-01` } })
    await server.call('GET', '/v1/sandboxes', { headers: { traceparent: '../../etc' } })
    await server.close()
    expect(spans().map(({ parentSpanId }) => parentSpanId ?? '')).toEqual(['', ''])
    expect(spans().some(({ traceId }) => traceId === TRACE)).toBe(false)

    received.length = 0
    const silent = await startTestServer()
    await silent.call('GET', '/v1/sandboxes')
    await silent.close()
    expect(received).toEqual([])
  })

  test.each(['ftp://collector', 'nonsense', 'http://user:password@collector:4318'])(
    'reject the collector address %s and name a valid form',
    async (url) => {
      await expect(startTestServer(`[telemetry]\ntraces = "${url}"\n`)).rejects.toMatchObject({
        code: 'invalid-config',
        message: expect.stringContaining('http://host:4318'),
      })
    },
  )
})
