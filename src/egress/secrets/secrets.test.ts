import { X509Certificate } from 'node:crypto'
import type { RequestListener } from 'node:http'
import { get } from 'node:http'
import { type RequestOptions, request as requestTls } from 'node:https'
import { connect as connectTls } from 'node:tls'
import { inspect } from 'node:util'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { Secret } from '../../host/secrets/secret.ts'
import type { EgressProxy } from '../proxy.ts'
import { talk, World } from '../testkit/world.ts'
import { type BrokeredSecret, brokerSecret } from './broker.ts'

const VALUE = 'sk+live/0123456789=abc"def'
/** The address of `apart.example`; all other names are at one address. */
const APART = '127.0.0.2'
let world: World
beforeEach(() => {
  world = new World()
})
afterEach(() => world.end())

type Setup = {
  readonly secret: BrokeredSecret
  readonly proxy: EgressProxy
  readonly port: number
  readonly at: number
}

async function setup(answer: RequestListener, scheme: 'https' | 'http' = 'https'): Promise<Setup> {
  const at = scheme === 'https' ? await world.https(answer) : await world.http(answer)
  const secret = brokerSecret({ name: 'TOKEN', host: 'api.example', port: at, scheme }, new Secret(VALUE))
  const { proxy, port } = await world.proxy({
    secrets: [secret],
    upstreamCa: world.authority.certificate,
    allowPrivate: ['127.0.0.1', APART],
    resolve: (host) => [host === 'apart.example' ? APART : '127.0.0.1'],
  })
  return { secret, proxy, port, at }
}

type Answer = {
  readonly status: number
  readonly statusText: string
  readonly headers: string
  readonly body: string
  readonly issuer: string
}

/** A request through CONNECT and TLS, as a client in the sandbox makes it. */
function ask(
  { proxy, port, at }: Setup,
  options: RequestOptions = {},
  host = 'api.example',
  body?: string,
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const tunnel = get({ host: '127.0.0.1', port, method: 'CONNECT', path: `${host}:${at}` })
    tunnel.on('error', reject)
    tunnel.on('connect', (response, socket) => {
      if (response.statusCode !== 200)
        return reject(new Error(String(response.headers['x-ringfence-reason'])))
      const ca = [proxy.caCertificate ?? '', world.authority.certificate]
      const secure = connectTls({ socket, servername: options.servername ?? host, ca })
      secure.on('error', reject)
      const sent = requestTls({ createConnection: () => secure, host, port: at, ...options }, (answer) => {
        let text = ''
        answer.on('error', reject)
        answer.on('data', (chunk) => {
          text += chunk
        })
        answer.on('end', () => {
          const issuer = secure.getPeerCertificate().issuer.CN ?? ''
          resolve({
            status: answer.statusCode ?? 0,
            statusText: answer.statusMessage ?? '',
            headers: JSON.stringify(answer.rawHeaders),
            body: text,
            issuer,
          })
          secure.destroy()
        })
      })
      sent.on('error', reject)
      sent.end(body)
    })
  })
}

describe('a brokered secret', () => {
  it('replaces its placeholder in headers, query and basic authentication', async () => {
    const it = await setup((_, response) => void response.end('done'))
    const { placeholder } = it.secret
    expect(placeholder).toMatch(/^rfs_[0-9a-f]{48}$/)
    const basic = Buffer.from(`user:${placeholder}`).toString('base64')
    await ask(it, {
      path: `/v1/${placeholder}?key=${placeholder}&x=1`,
      headers: { authorization: `Bearer ${placeholder}`, 'x-two': `${placeholder}.${placeholder}` },
    })
    await ask(it, { headers: { authorization: `Basic ${basic}` } })
    const [first, second] = world.requests
    expect(first?.headers.authorization).toBe(`Bearer ${VALUE}`)
    expect(first?.headers['x-two']).toBe(`${VALUE}.${VALUE}`)
    const url = new URL(first?.url ?? '', 'http://x')
    expect([url.pathname, url.searchParams.get('key')]).toEqual([`/v1/${placeholder}`, VALUE])
    expect(second?.headers.authorization).toBe(`Basic ${Buffer.from(`user:${VALUE}`).toString('base64')}`)
  })

  it('is not inserted into bodies, which a server may show to others', async () => {
    let seen = ''
    const it = await setup((request, response) => {
      request.on('data', (chunk) => {
        seen += chunk
      })
      request.on('end', () => response.end('done'))
    })
    await ask(it, { method: 'POST' }, 'api.example', `{"note":"${it.secret.placeholder}"}`)
    expect(seen).toBe(`{"note":"${it.secret.placeholder}"}`)
  })

  it('never comes back, in any encoding that a server uses', async () => {
    const forms = [
      VALUE,
      encodeURIComponent(VALUE),
      JSON.stringify(VALUE),
      Buffer.from(VALUE).toString('base64'),
      Buffer.from(`u:${VALUE}`).toString('base64'),
      Buffer.from(`us:${VALUE}!`).toString('base64url'),
      Buffer.from(VALUE).toString('hex'),
      JSON.stringify(VALUE).replaceAll('/', '\\/').replaceAll('+', '\\u002b'),
      encodeURIComponent(VALUE).toLowerCase(),
      VALUE.replaceAll('"', '&quot;').replaceAll('=', '&#61;'),
    ]
    const it = await setup(async (request, response) => {
      response.setHeader('x-echo', String(request.headers.authorization))
      response.setHeader('set-cookie', [`a=${encodeURIComponent(VALUE)}`, 'b=c'])
      // Byte by byte, so that the value is split at every position.
      for (const byte of Buffer.from(`start ${forms.join(' ')} end`)) {
        response.write(Buffer.from([byte]))
        if (byte === 0x30) await new Promise((resolve) => setImmediate(resolve))
      }
      response.end()
    })
    const answer = await ask(it, { headers: { authorization: `Bearer ${it.secret.placeholder}` } })
    expect(answer.status).toBe(200)
    const all = answer.body + answer.headers
    for (const form of forms) expect(all).not.toContain(form)
    expect(all).not.toMatch(/0123456789|MDEyMzQ1Njc4O|AxMjM0NTY3OD|wMTIzNDU2Nzg5/)
    expect(answer.headers).toContain(`Bearer ${it.secret.placeholder}`)
    expect(answer.body).toMatch(/^start rfs_.* end$/)
  })

  it('never comes back in the name of a header, in the status text, or in a trailer', async () => {
    const plain = 'Sk-Live-0123456789abcdef'
    const at = await world.https(async (request, response) => {
      if (request.url === '/trailer') {
        response.setHeader('trailer', 'x-late')
        response.write('x')
        response.addTrailers({ 'x-late': String(request.headers.authorization) })
        return void response.end()
      }
      const value = String(request.headers.authorization)
      response.writeHead(200, `fine ${value}`, {
        [`x-${value}-y`]: '1',
        [value.toLowerCase()]: '2',
        [value.toUpperCase()]: '3',
      })
      response.end('done')
    })
    const secret = brokerSecret(
      { name: 'TOKEN', host: 'api.example', port: at, scheme: 'https' },
      new Secret(plain),
    )
    const { proxy, port } = await world.proxy({ secrets: [secret], upstreamCa: world.authority.certificate })
    const it = { secret, proxy, port, at }
    const headers = { authorization: secret.placeholder }
    const answer = await ask(it, { headers })
    expect(answer.status).toBe(200)
    expect(answer.headers.toLowerCase()).not.toContain(plain.toLowerCase())
    expect(answer.headers).toContain(`x-${secret.placeholder}-y`)
    expect(answer.statusText).toBe(`fine ${secret.placeholder}`)
    const trailing = await ask(it, { headers, path: '/trailer' }).catch(String)
    expect(JSON.stringify(trailing)).not.toContain(plain)
  })

  it('never comes back from another port of its host, over HTTP or TLS', async () => {
    const echo: RequestListener = (_, response) => {
      response.setHeader(`x-${VALUE.replace(/[^\w]/g, '')}`, VALUE)
      response.end(`you once sent ${VALUE}`)
    }
    const it = await setup(echo)
    const [otherTls, otherPlain] = [await world.https(echo), await world.http(echo)]
    const inside = await ask({ ...it, at: otherTls })
    expect(inside.issuer, 'TLS ends at the proxy').toMatch(/^ringfence/)
    expect(inside.body).toBe(`you once sent ${it.secret.placeholder}`)
    expect(inside.headers).not.toContain(VALUE)
    const tunnelled = await talk(
      it.port,
      `CONNECT api.example:${otherPlain} HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nhost: api.example:${otherPlain}\r\nconnection: close\r\n\r\n`,
    )
    expect(tunnelled).toContain(it.secret.placeholder)
    expect(tunnelled).not.toContain(VALUE)
    const absolute = await talk(
      it.port,
      `GET http://api.example:${otherPlain}/ HTTP/1.1\r\nhost: api.example:${otherPlain}\r\nconnection: close\r\n\r\n`,
    )
    expect(absolute).toContain(it.secret.placeholder)
    expect(absolute).not.toContain(VALUE)
    // The placeholder is not replaced there.
    const headers = { authorization: it.secret.placeholder }
    expect((await ask({ ...it, at: otherTls }, { headers })).body).toContain('which is not its port')
  })

  it('nor over other protocols, or by the address of its host', async () => {
    const it = await setup((_, response) => void response.end('done'))
    const raw = await world.tcp((socket) => void socket.write(`220 ${VALUE}\r\n`))
    const spoken = await talk(it.port, `CONNECT api.example:${raw} HTTP/1.1\r\n\r\nEHLO me\r\n\r\n`)
    expect(spoken).not.toContain(VALUE)
    const { proxy, port } = await world.proxy({
      allowHosts: ['*.example', '127.0.0.1'],
      secrets: [it.secret],
      upstreamCa: world.authority.certificate,
    })
    const byAddress = ask({ ...it, proxy, port }, { servername: 'api.example' }, '127.0.0.1')
    await expect(byAddress).rejects.toThrow()
  })

  it('cannot be obtained in slices or compressed', async () => {
    const it = await setup((request, response) => {
      expect(request.headers).not.toHaveProperty('range')
      expect(request.headers['accept-encoding']).toBe('identity')
      if (request.url === '/packed') response.setHeader('content-encoding', 'gzip')
      response.end('x')
    })
    await ask(it, { headers: { range: 'bytes=0-3', 'accept-encoding': 'gzip' } })
    const packed = await ask(it, { path: '/packed' })
    expect([packed.status, packed.body]).toEqual([
      502,
      'ringfence: fetch-failed: the answer is packed and cannot be searched for secrets\n',
    ])
  })

  it('is sent to no other host, port or scheme, and the attempt is reported', async () => {
    const it = await setup((_, response) => void response.end())
    const plain = await world.http()
    const token = it.secret.placeholder
    const send = (at: string, more: string): Promise<string> =>
      talk(
        it.port,
        `GET http://${at}/?${more.includes('?') ? token : ''} HTTP/1.1\r\nHost: ${at}\r\n${more.replace('?', '')}Connection: close\r\n\r\n`,
      )
    const basic = Buffer.from(`u:${token}`).toString('base64')
    for (const [at, more] of [
      [`other.example:${plain}`, `Authorization: Bearer ${token}\r\n`],
      [`other.example:${plain}`, `Authorization: Basic ${basic}\r\n`],
      [`other.example:${plain}`, '?'],
      [`api.example:${plain}`, `Authorization: Bearer ${token}\r\n`],
      [`api.example:${it.at}`, `Authorization: Bearer ${token}\r\n`],
    ] as const) {
      const said = await send(at, more)
      expect(said).toMatch(
        /^HTTP\/1\.1 403 [\s\S]*ringfence: capability-denied: the placeholder of `TOKEN` is sent/,
      )
      expect(said).not.toContain(token)
    }
    expect(world.requests).toEqual([])
    expect(world.events).toHaveLength(5)
    expect(world.events.every(({ verdict }) => verdict === 'deny')).toBe(true)
  })

  it('is sent unencrypted only if that was requested', async () => {
    const it = await setup((_, response) => void response.end('done'), 'http')
    const at = `api.example:${it.at}`
    await talk(
      it.port,
      `GET http://${at}/ HTTP/1.1\r\nHost: ${at}\r\nX-Key: ${it.secret.placeholder}\r\nConnection: close\r\n\r\n`,
    )
    expect(world.requests[0]?.headers['x-key']).toBe(VALUE)
    // TLS to the same host could return the value, so it has to be inspected as well.
    expect(it.proxy.caCertificate).toContain('BEGIN CERTIFICATE')
  })

  it('intercepts TLS only for its own host', async () => {
    const it = await setup((_, response) => void response.end('done'))
    const apart = await world.https(undefined, APART)
    const [own, other] = [await ask(it), await ask({ ...it, at: apart }, {}, 'apart.example')]
    expect(own.issuer).toMatch(/^ringfence /)
    expect(new X509Certificate(it.proxy.caCertificate ?? '').subject).toBe(`CN=${own.issuer}`)
    expect(new X509Certificate(world.authority.certificate).subject).toBe(`CN=${other.issuer}`)
  })

  it('is not sent to a server without a valid certificate', async () => {
    const at = await world.https()
    const secret = brokerSecret(
      { name: 'TOKEN', host: 'api.example', port: at, scheme: 'https' },
      new Secret(VALUE),
    )
    // The system's certificates do not include this server's.
    const { proxy, port } = await world.proxy({ secrets: [secret] })
    const answer = await ask({ secret, proxy, port, at }, { headers: { authorization: secret.placeholder } })
    expect([answer.status, world.requests.length]).toEqual([502, 0])
  })

  it('can be replaced while the sandbox runs', async () => {
    const it = await setup((_, response) => void response.end('done'))
    it.secret.value.replace('a-new-value-now')
    await ask(it, { headers: { 'x-key': it.secret.placeholder } })
    expect(world.requests[0]?.headers['x-key']).toBe('a-new-value-now')
    it.secret.value.replace('bad\r\nX-Evil: 1')
    const refused = await ask(it, { headers: { 'x-key': it.secret.placeholder } })
    expect([refused.status, world.requests.length]).toEqual([403, 1])
    it.secret.value.dispose()
    const late = await ask(it, { headers: { 'x-key': it.secret.placeholder } })
    expect([late.status, world.requests.length]).toEqual([403, 1])
    expect(late.headers).toContain('taken back')
    expect((await ask(it)).status, 'without it the place is reached as before').toBe(200)
  })

  it('never comes back as it was or as it is, if it is replaced while a response arrives', async () => {
    const later = 'a-new-value-now'
    const it = await setup(async (_, response) => {
      response.write('start ')
      await new Promise((resolve) => setTimeout(resolve, 20))
      it.secret.value.replace(later)
      response.end(`${VALUE} ${later}`)
    })
    const { placeholder } = it.secret
    expect((await ask(it)).body, 'in the response that had begun').toBe(`start ${placeholder} ${placeholder}`)
    expect((await ask(it)).body, 'in the next one').toBe(`start ${placeholder} ${placeholder}`)
  })

  it('waits for a server up to a timeout', async () => {
    const silent = await world.tcp(() => undefined)
    const secret = brokerSecret(
      { name: 'TOKEN', host: 'api.example', port: silent, scheme: 'https' },
      new Secret(VALUE),
    )
    const { proxy, port } = await world.proxy({ secrets: [secret], limits: { connectMs: 100 } })
    expect((await ask({ secret, proxy, port, at: silent })).status).toBe(504)
  })

  it('is in no message, exception, report or output', async () => {
    const said: string[] = []
    const write = process.stderr.write.bind(process.stderr)
    process.stderr.write = ((chunk: string) => {
      said.push(String(chunk))
      return true
    }) as typeof process.stderr.write
    try {
      const it = await setup((request, response) => {
        if (request.url === '/cut') response.destroy()
        else if (request.url === '/bad') response.socket?.end(`HTTP/9 ${VALUE}\r\n\r\n`)
        else response.end(VALUE)
      })
      for (const path of ['/', '/cut', '/bad', `/?${it.secret.placeholder}`]) {
        const answer = await ask(it, { path, headers: { authorization: it.secret.placeholder } }).catch(
          String,
        )
        said.push(JSON.stringify(answer))
      }
      said.push(
        JSON.stringify(world.events),
        inspect(it, { depth: 12, showHidden: true }),
        JSON.stringify(it.secret),
      )
    } finally {
      process.stderr.write = write
    }
    expect(said.length).toBeGreaterThan(5)
    expect(said.join('\n')).not.toMatch(/0123456789/)
  })

  it.each(['short', 'with\nline', 'with\0nul-and-more'])('refuses the value %j', (value) => {
    const grant = { name: 'T', host: 'a.example', port: 443, scheme: 'https' } as const
    expect(() => brokerSecret(grant, new Secret(value))).toThrow('the value of `T` cannot be brokered')
  })
})
