import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer, type IncomingMessage, type RequestListener, type Server } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { assertPublicUrl, type SafeFetchOptions, safeFetch } from './safe-fetch.ts'

/** Real servers on 127.0.0.1, which is allowed explicitly; every other address of this machine stays blocked. */
const OPEN: SafeFetchOptions = { allowPrivate: ['127.0.0.1/32'] }

const servers: Server[] = []
afterEach(() => {
  for (const server of servers.splice(0)) {
    server.closeAllConnections()
    server.close()
  }
})

type Seen = { readonly url: string; readonly requests: IncomingMessage[] }

function listening(server: Server, host: string): Promise<number> {
  servers.push(server)
  return new Promise((resolve) =>
    server.listen(0, host, () => resolve((server.address() as AddressInfo).port)),
  )
}

async function serve(answer: RequestListener, host = '127.0.0.1'): Promise<Seen> {
  const requests: IncomingMessage[] = []
  const server = createServer((request, response) => {
    requests.push(request)
    answer(request, response)
  })
  return { url: `http://${host}:${await listening(server, host)}`, requests }
}

const redirectTo =
  (location: string, status = 302): RequestListener =>
  (_, response) =>
    response.writeHead(status, { location }).end()

const textOf = (body: Uint8Array): string => Buffer.from(body).toString('utf8')
const blocked = { code: 'ssrf-blocked' }
const nobody = (): never => {
  throw new Error('nothing may be looked up')
}

describe('assertPublicUrl', () => {
  it.each([
    'http://127.0.0.1/',
    'http://2130706433/',
    'http://0x7f.1/',
    'http://[::1]/',
    'http://[::ffff:169.254.169.254]/',
    'http://169.254.169.254/latest/meta-data/',
    'http://metadata.google.internal/',
    'http://localhost/',
    'http://printer.local/',
    'http://user@example.com/',
    'file:///etc/passwd',
    'gopher://example.com/',
    'http://example.com:22/',
    'http://example.com\\@127.0.0.1/',
    'not a url',
    '',
  ])('refuses %j before any look-up', async (url) => {
    await expect(assertPublicUrl(url, { resolve: nobody })).rejects.toMatchObject(blocked)
  })

  it('returns the addresses that it checked', async () => {
    const resolve = () => ['93.184.215.14', '2606:2800:21f:cb07:6820:80da:af6b:8b2c']
    const { url, addresses } = await assertPublicUrl('https://example.com/x', { resolve })
    expect(url.href).toBe('https://example.com/x')
    expect(addresses).toEqual(resolve())
  })

  it.each<[string, readonly string[]]>([
    ['one private address among public ones', ['93.184.215.14', '10.0.0.1']],
    ['an IPv4 address inside an IPv6 one', ['::ffff:127.0.0.1']],
    ['no answer', []],
    ['text that is not an address', ['example.org']],
    ['metadata', ['169.254.169.254']],
  ])('refuses %s', async (_, answers) => {
    await expect(assertPublicUrl('http://example.com/', { resolve: () => answers })).rejects.toMatchObject(
      blocked,
    )
  })

  it('refuses when the DNS lookup fails', async () => {
    const resolve = () => Promise.reject(new Error('SERVFAIL'))
    await expect(assertPublicUrl('http://example.com/', { resolve })).rejects.toMatchObject(blocked)
  })

  it('enforces the list of hosts', async () => {
    const options = { allowHosts: ['*.openai.com'], resolve: () => ['93.184.215.14'] }
    await expect(assertPublicUrl('https://api.openai.com/', options)).resolves.toBeDefined()
    await expect(assertPublicUrl('https://evilopenai.com/', options)).rejects.toMatchObject(blocked)
  })
})

describe('safeFetch', () => {
  it('fetches from an allowed address', async () => {
    const { url, requests } = await serve((_, response) => response.setHeader('x-a', 'b').end('hello'))
    const response = await safeFetch(`${url}/p?q=1`, OPEN)
    expect(response).toMatchObject({ status: 200, url: `${url}/p?q=1`, addresses: ['127.0.0.1'] })
    expect(textOf(response.body)).toBe('hello')
    expect(response.headers['x-a']).toBe('b')
    expect(requests[0]?.url).toBe('/p?q=1')
  })

  it('opens no socket to a blocked address', async () => {
    const { url, requests } = await serve((_, response) => response.end())
    await expect(safeFetch(url)).rejects.toMatchObject(blocked)
    const named = { resolve: () => ['127.0.0.1'] }
    await expect(safeFetch(url.replace('127.0.0.1', 'a.example'), named)).rejects.toMatchObject(blocked)
    expect(requests).toHaveLength(0)
  })

  it('never fetches metadata, even if it is allowed', async () => {
    const all = { allowPrivate: ['0.0.0.0/0', '169.254.169.254'], timeoutMs: 1000 }
    await expect(safeFetch('http://169.254.169.254/', all)).rejects.toMatchObject(blocked)
    const named = { ...all, resolve: () => ['169.254.169.254'] }
    await expect(safeFetch('http://a.example/', named)).rejects.toMatchObject(blocked)
  })

  it('resolves a name once and connects to that address, with the name in `Host`', async () => {
    const { url, requests } = await serve((_, response) => response.end('mine'))
    const named = url.replace('127.0.0.1', 'rebind.example')
    let lookups = 0
    const resolve = () => (lookups++ === 0 ? ['127.0.0.1'] : ['169.254.169.254'])
    const response = await safeFetch(named, { ...OPEN, resolve })
    expect(textOf(response.body)).toBe('mine')
    expect([lookups, response.addresses]).toEqual([1, ['127.0.0.1']])
    expect(requests[0]?.headers.host).toBe(new URL(named).host)
  })

  it('checks the second lookup of a redirect like the first', async () => {
    const { url, requests } = await serve(redirectTo('/again'))
    let lookups = 0
    const resolve = () => (lookups++ === 0 ? ['127.0.0.1'] : ['127.0.0.2'])
    const fetched = safeFetch(url.replace('127.0.0.1', 'rebind.example'), { ...OPEN, resolve })
    await expect(fetched).rejects.toMatchObject(blocked)
    expect(requests).toHaveLength(1)
  })

  it.each([
    ['another loopback address', 'http://127.0.0.2:PORT/'],
    ['a name for loopback', 'http://localhost:PORT/'],
    ['without a scheme', '//127.0.0.2:PORT/'],
    ['IPv6 loopback', 'http://[::1]:PORT/'],
    ['metadata', 'http://169.254.169.254/'],
    ['a file', 'file:///etc/passwd'],
    ['with a user name', 'http://x@127.0.0.1:PORT/'],
    ['a port of another protocol', 'http://127.0.0.1:22/'],
  ])('does not follow a redirect to %s', async (_, location) => {
    const hidden = await serve((_request, response) => response.end('secret'), '127.0.0.2')
    const port = new URL(hidden.url).port
    const front = await serve(redirectTo(location.replace('PORT', port)))
    await expect(safeFetch(front.url, OPEN)).rejects.toMatchObject(blocked)
    expect([front.requests.length, hidden.requests.length]).toEqual([1, 0])
  })

  it('follows five redirects and no more', async () => {
    const { url, requests } = await serve((request, response) => {
      const left = Number(request.url?.slice(1))
      if (left === 0) response.end('there')
      else response.writeHead(302, { location: `/${left - 1}` }).end()
    })
    expect(textOf((await safeFetch(`${url}/5`, OPEN)).body)).toBe('there')
    expect(requests).toHaveLength(6)
    await expect(safeFetch(`${url}/6`, OPEN)).rejects.toMatchObject(blocked)
    expect(requests).toHaveLength(12)
    expect((await safeFetch(`${url}/3`, { ...OPEN, maxRedirects: 0 })).status).toBe(302)
  })

  it('drops credentials across origins and keeps other headers', async () => {
    const other = await serve((_, response) => response.end())
    const front = await serve((request, response) => {
      response.writeHead(307, { location: request.url === '/here' ? '/there' : other.url }).end()
    })
    const headers = {
      Authorization: 'Bearer s',
      Cookie: 'a=b',
      'Proxy-Authorization': 'x',
      'X-API-Key': 'k',
      'x-amz-security-token': 't',
      'X-Trace': 'kept',
    }
    await safeFetch(`${front.url}/here`, { ...OPEN, headers })
    const [first, same] = front.requests
    for (const request of [first, same])
      expect(request?.headers).toMatchObject({ authorization: 'Bearer s', cookie: 'a=b', 'x-api-key': 'k' })
    const names = Object.keys(other.requests[0]?.headers ?? {}).sort()
    expect(names).toEqual(['accept-encoding', 'connection', 'host', 'x-trace'])
  })

  it.each([
    [303, 'PUT', 'GET'],
    [303, 'HEAD', 'HEAD'],
    [301, 'POST', 'GET'],
    [302, 'POST', 'GET'],
    [302, 'PUT', 'PUT'],
    [307, 'POST', 'POST'],
    [308, 'POST', 'POST'],
  ])('after %i a %s becomes a %s', async (status, method, expected) => {
    const bodies: string[] = []
    const { url, requests } = await serve((request, response) => {
      let body = ''
      request.on('data', (chunk) => {
        body += chunk
      })
      request.on('end', () => {
        bodies.push(body)
        if (request.url === '/a') response.writeHead(status, { location: '/b' }).end()
        else response.end()
      })
    })
    const body = method === 'HEAD' ? {} : { body: 'data', headers: { 'content-type': 'text/plain' } }
    await safeFetch(`${url}/a`, { ...OPEN, method, ...body })
    expect(requests[1]?.method).toBe(expected)
    expect(bodies[1]).toBe(expected === method && method !== 'HEAD' ? 'data' : '')
    expect(requests[1]?.headers['content-type'] !== undefined).toBe(expected === method && method !== 'HEAD')
  })

  it('refuses a body over the limit, with or without Content-Length', async () => {
    const { url } = await serve((request, response) => {
      if (request.url === '/told') response.setHeader('content-length', 5000)
      response.write(Buffer.alloc(3000))
      response.end(Buffer.alloc(2000))
    })
    const small = { ...OPEN, maxBytes: 4000 }
    for (const path of ['/told', '/untold'])
      await expect(safeFetch(url + path, small)).rejects.toMatchObject({ code: 'resource-exhausted' })
    expect((await safeFetch(`${url}/untold`, { ...OPEN, maxBytes: 5000 })).body.byteLength).toBe(5000)
  })

  it.each<[string, RequestListener]>([
    ['no head', () => undefined],
    ['a body that never ends', (_, response) => void response.write('x')],
    [
      'a body of one byte at a time',
      (_, response) => {
        const timer = setInterval(() => response.write('x'), 20)
        response.on('close', () => clearInterval(timer))
      },
    ],
  ])('gives up in time: %s', async (_, answer) => {
    const { url } = await serve(answer)
    const started = performance.now()
    await expect(safeFetch(url, { ...OPEN, timeoutMs: 200 })).rejects.toMatchObject({ code: 'timeout' })
    if (process.env.RINGFENCE_FULL) expect(performance.now() - started).toBeLessThan(2000)
  })

  it('times out when the DNS lookup hangs', async () => {
    const hangs = { resolve: () => new Promise<readonly string[]>(() => undefined), timeoutMs: 100 }
    await expect(safeFetch('http://a.example/', hangs)).rejects.toMatchObject({ code: 'timeout' })
  })

  it('can be aborted by the caller', async () => {
    const { url } = await serve(() => undefined)
    const stop = new AbortController()
    setTimeout(() => stop.abort(), 50)
    await expect(safeFetch(url, { ...OPEN, signal: stop.signal })).rejects.toBeDefined()
  })

  it('ignores headers that set the destination or the length', async () => {
    const { url, requests } = await serve((_, response) => response.end())
    const headers = {
      Host: 'evil.example',
      'Transfer-Encoding': 'chunked',
      Connection: 'upgrade',
      Upgrade: 'h2c',
    }
    await safeFetch(url, { ...OPEN, headers })
    expect(requests[0]?.headers).toEqual({
      host: new URL(url).host,
      connection: 'close',
      'accept-encoding': 'identity',
    })
    await expect(safeFetch(url, { ...OPEN, headers: { 'x-a': 'b\r\nhost: c' } })).rejects.toMatchObject({
      code: 'invalid-input',
    })
    await expect(safeFetch(url, { ...OPEN, method: 'CONNECT' })).rejects.toMatchObject({
      code: 'invalid-input',
    })
  })

  it('reports that a host cannot be reached', async () => {
    const { url } = await serve((_, response) => response.end())
    await new Promise((resolve) => servers.pop()?.close(resolve))
    await expect(safeFetch(url, OPEN)).rejects.toMatchObject({
      message: expect.stringMatching(/cannot fetch/),
    })
  })
})

describe('safeFetch over TLS', () => {
  const dir = mkdtempSync(join(tmpdir(), 'rf-tls-'))
  const file = (name: string): string => join(dir, name)
  const args = ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=tls.example']
  execFileSync(
    'openssl',
    [...args, '-addext', 'subjectAltName=DNS:tls.example', '-keyout', file('key'), '-out', file('cert')],
    { stdio: 'ignore' },
  )
  const [key, cert] = ['key', 'cert'].map((name) => readFileSync(file(name), 'utf8')) as [string, string]
  rmSync(dir, { recursive: true })
  const local = { ...OPEN, resolve: () => ['127.0.0.1'], ca: cert }

  const serveTls = async (): Promise<{ port: number; names: unknown[] }> => {
    const names: unknown[] = []
    const server = createTlsServer({ key, cert }, (request, response) => {
      names.push((request.socket as { servername?: unknown }).servername)
      response.end('secret')
    })
    return { port: await listening(server as unknown as Server, '127.0.0.1'), names }
  }

  it('connects to the address and verifies the name', async () => {
    const { port, names } = await serveTls()
    expect(textOf((await safeFetch(`https://tls.example:${port}/`, local)).body)).toBe('secret')
    expect(names).toEqual(['tls.example'])
  })

  it.each(['https://other.example:PORT/', 'https://127.0.0.1:PORT/'])(
    'refuses a wrong certificate for %s',
    async (url) => {
      const { port, names } = await serveTls()
      await expect(safeFetch(url.replace('PORT', String(port)), local)).rejects.toMatchObject({
        message: expect.stringMatching(/ERR_TLS_CERT_ALTNAME_INVALID/),
      })
      expect(names).toEqual([])
    },
  )

  it('refuses an untrusted certificate', async () => {
    const { port } = await serveTls()
    const { ca: _, ...system } = local
    await expect(safeFetch(`https://tls.example:${port}/`, system)).rejects.toMatchObject({
      message: expect.stringMatching(/SELF_SIGNED/),
    })
  })
})
