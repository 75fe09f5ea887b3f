import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { EgressProxy } from '../proxy.ts'
import { proxiedFetch } from './proxied-fetch.ts'

/** Requests of this process through a proxy, to a server that behaves badly. */

let server: Server
let url = ''
const proxies: EgressProxy[] = []

beforeAll(async () => {
  server = createServer((request, response) => {
    if (request.url === '/hang') return
    if (request.url === '/redirect')
      return void response.writeHead(302, { location: 'http://169.254.169.254/' }).end()
    if (request.url === '/huge') return void response.end('x'.repeat(100_000))
    if (request.url === '/none') return void response.writeHead(204).end()
    if (request.url === '/cut') {
      response.writeHead(200, { 'content-length': '1000' })
      response.write('begun')
      return void setTimeout(() => response.destroy(), 20)
    }
    let body = ''
    request.on('data', (chunk) => {
      body += chunk
    })
    request.on('end', () =>
      response.end(`${request.method} ${request.headers.host} ${request.headers['x-own']} ${body}`),
    )
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
})
afterAll(async () => {
  for (const proxy of proxies) await proxy.close()
  server.closeAllConnections()
  server.close()
})

function fetcher(allowed: readonly string[]) {
  const proxy = new EgressProxy({ allowHosts: allowed, allowPrivate: allowed })
  proxies.push(proxy)
  return proxiedFetch({
    handle: (stream) => void proxy.handle(stream),
    certificates: undefined,
    maxBytes: 10_000,
  })
}
const own = () => fetcher([new URL(url).host])

test('proxied fetch sends method, headers and body, and returns the response', async () => {
  const answer = await own()(`${url}/a?b=c`, { method: 'POST', headers: { 'X-Own': 'h' }, body: 'text' })
  expect([answer.status, await answer.text()]).toEqual([200, `POST ${new URL(url).host} h text`])
  expect((await own()(`${url}/none`)).status).toBe(204)
})

test('proxied fetch reaches only hosts that the proxy allows', async () => {
  await expect(fetcher(['other.example'])(url)).rejects.toThrow(/the proxy refused/)
  await expect(own()('http://169.254.169.254/latest')).rejects.toThrow(/the proxy refused/)
})

test('proxied fetch follows no redirect', async () => {
  const answer = await own()(`${url}/redirect`)
  expect([answer.status, answer.headers.get('location')]).toEqual([302, 'http://169.254.169.254/'])
})

test('proxied fetch ends bodies that are too long, truncated, or never arrive', async () => {
  await expect((await own()(`${url}/huge`)).text()).rejects.toThrow(/more than 10000 bytes/)
  await expect((await own()(`${url}/cut`)).text()).rejects.toThrow()
  await expect(own()(`${url}/hang`, { signal: AbortSignal.timeout(100) })).rejects.toThrow()
  await expect(own()(`${url}/a`, { signal: AbortSignal.abort() })).rejects.toThrow()
})
