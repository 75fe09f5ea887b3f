import { createServer } from 'node:http'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { EgressProxy } from '../../src/egress/proxy.ts'
import { client, get, type Loose, until, type World, world } from './kit.ts'

/** What a sandbox reaches: by the operator's default, by what its creator allows and denies, and how ports are named. */

let here: World
let e2b: Loose
beforeAll(async () => {
  here = await world('[e2b]\ninternet = "open"\n[server]\nhosts = ["*.sbx.test"]\n')
  e2b = await client('e2b')
})
afterAll(async () => {
  await here.close()
  expect(here.logs).toEqual([])
})

const listOf = async (place: World, one: Loose): Promise<string[]> => {
  const id = one.sandboxId.replace(/^sb/, 'sb_')
  return (await place.server.call('GET', `/v1/sandboxes/${id}`)).json.network.allow_hosts
}
/** What the proxy answers to a request for this host. The policy for commands would refuse some of them before. */
const ask = async (one: Loose, host: string): Promise<string> => {
  const line = `curl -sS --noproxy '' --max-time 5 "http://$H/" 2>&1; true`
  return (await one.commands.run(line, { envs: { H: host } })).stdout
}

describe('an egress proxy allowed by the operator', () => {
  test('is used only by a sandbox that names it', async () => {
    const seen: string[] = []
    // A real SOCKS5 proxy: ours, which here answers in place of an address of the internet.
    const outer = new EgressProxy({
      allowHosts: ['*'],
      allowPrivate: [],
      admit: ({ host, port }) => {
        seen.push(`${host}:${port}`)
        throw new Error('seen')
      },
    })
    const { port } = await outer.listen({ host: '127.0.0.1', port: 0 })
    const address = `127.0.0.1:${port}`
    const upstream = `[[network.upstream]]\naddress = "${address}"\ntenants = ["default"]\n`
    const place = await world(`[e2b]\ninternet = "open"\n${upstream}`)
    try {
      const network = { egressProxy: { address } }
      const one = await e2b.Sandbox.create({ ...place.options, network })
      expect(await ask(one, '1.1.1.1')).not.toContain('denied')
      expect(seen).toEqual(['1.1.1.1:80'])
      expect(await ask(one, '127.0.0.1')).toMatch(/loopback|private/)
      await expect(one.updateNetwork({ egressProxy: { address: 'x.example:1' } })).rejects.toThrow(
        /cannot be changed/,
      )
      const apiKey = await place.key('blue', ['create', 'exec', 'read'])
      await expect(e2b.Sandbox.create({ ...place.options, apiKey, network })).rejects.toThrow(
        /tenant `blue` may not use the proxy/,
      )
      const two = await e2b.Sandbox.create(place.options)
      await ask(two, '192.0.2.8')
      expect(seen).toEqual(['1.1.1.1:80'])
    } finally {
      await place.close()
      await outer.close()
    }
  })
})

describe('allow and deny lists', () => {
  test('accept addresses, ranges and denials, on create and while the sandbox runs', async () => {
    const make = (network: object): Promise<Loose> => e2b.Sandbox.create({ ...here.options, network })
    const all = '0.0.0.0/0'
    const one = await make({ denyOut: [all], allowOut: ['192.0.2.7', '2001:db8::/32'] })
    expect(await listOf(here, one)).toEqual(['192.0.2.7', '[2001:db8::/32]'])
    await one.updateNetwork({ denyOut: ['bad.example', '198.51.100.0/24'] })
    expect(await listOf(here, one)).toEqual(['*', '!bad.example', '!198.51.100.0/24'])
    expect(await ask(one, 'bad.example')).toContain('`bad.example` is denied')
    expect(await ask(one, '198.51.100.9')).toContain('is denied')
    expect(await ask(one, 'other.invalid-tld')).not.toContain('denied')
    expect((await one.getInfo()).network.denyOut).toEqual(['bad.example', '198.51.100.0/24'])
    await one.updateNetwork({})
    expect(await listOf(here, one)).toEqual(['*'])
    await one.updateNetwork({ denyOut: [all] })
    expect(await listOf(here, one)).toEqual([])
    await one.kill()
    const both = await make({ allowOut: ['a.example'], denyOut: ['a.example', all] })
    expect(await listOf(here, both)).toEqual(['a.example'])
    await both.kill()
    await expect(make({ denyOut: ['1.2.3.4/99'] })).rejects.toThrow(/is not a host/)
  })

  test('never open loopback, private or metadata addresses', async () => {
    const one = await e2b.Sandbox.create(here.options)
    expect(await listOf(here, one)).toEqual(['*'])
    for (const host of ['127.0.0.1', '10.0.0.1', '169.254.169.254', 'localhost', 'metadata.google.internal'])
      expect(await ask(one, host)).toMatch(/metadata|loopback|private|internal/)
    await one.kill()
    const closed = await e2b.Sandbox.create({ ...here.options, allowInternetAccess: false })
    expect(await listOf(here, closed)).toEqual([])
    await closed.kill()
  })

  test.each([
    ['closed', '', []],
    ['registries', '', ['@registries']],
    ['open', '[network]\nallow_hosts = ["one.example"]\n', ['one.example']],
    ['closed', '[network]\nallow_hosts = ["one.example"]\n', []],
    ['registries', '[network]\nallow_hosts = ["one.example"]\n', []],
  ])('default to the operator’s setting `%s` %s', async (internet, network, wanted) => {
    const other = await world(`[e2b]\ninternet = "${internet}"\n${network}`)
    const one = await e2b.Sandbox.create(other.options)
    const id = one.sandboxId.replace(/^sb/, 'sb_')
    const { live } = await other.server.server.parts.supervisor.get(
      { keyId: '', tenant: '', scopes: [], sandboxId: id },
      id,
    )
    expect(live?.sandbox?.allowHosts).toEqual(wanted)
    await other.close()
  })
})

describe('header rules', () => {
  test('set request headers and can be replaced; their values are not visible in the sandbox', async () => {
    const seen: Loose[] = []
    const upstream = createServer((request, response) => {
      seen.push(request.headers)
      response.end('ok')
    })
    await new Promise<void>((resolve) => void upstream.listen(0, '127.0.0.1', resolve))
    const { port } = upstream.address() as { port: number }
    const place = await world(
      '[network]\nallow_private = ["127.0.0.1"]\n[[tenant]]\nname = "default"\nallow_hosts = ["127.0.0.1"]\n',
    )
    const rules = (value: string) => ({ '127.0.0.1': [{ transform: { headers: { 'X-Token': value } } }] })
    const allowOut = ['127.0.0.1']
    const one = await e2b.Sandbox.create({ ...place.options, network: { allowOut, rules: rules('first') } })
    const call = async (): Promise<string> => {
      const line = `curl -sS --noproxy '' -H 'x-token: mine' "http://$H/"; env | grep -c first; true`
      return (await one.commands.run(line, { envs: { H: `127.0.0.1:${port}` } })).stdout
    }
    expect(await call()).toBe('ok0\n')
    expect(seen.at(-1)?.['x-token']).toBe('first')
    await one.updateNetwork({ allowOut, rules: rules('second') })
    await call()
    expect(seen.at(-1)?.['x-token']).toBe('second')
    await one.updateNetwork({ allowOut })
    await call()
    expect(seen.at(-1)?.['x-token']).toBe('mine')
    const plain = await e2b.Sandbox.create({ ...place.options, network: { allowOut } })
    await expect(plain.updateNetwork({ allowOut, rules: rules('late') })).rejects.toThrow(/without rules/)
    await place.close()
    upstream.close()
  })
})

describe('maskRequestHost', () => {
  test('sets the Host header that a program on a port receives', async () => {
    const one = await e2b.Sandbox.create({
      ...here.options,
      // biome-ignore lint/suspicious/noTemplateCurlyInString: the placeholder is E2B's
      network: { maskRequestHost: 'inner.example:${PORT}' },
    })
    await one.files.write(
      's.cjs',
      'require("http").createServer((q, s) => s.end(q.headers.host)).listen(3000)',
    )
    await one.commands.run('node s.cjs', { background: true, timeoutMs: 0 })
    const page = () => get(here.options.apiUrl, one.getHost(3000))
    await until(async () => (await page()).status === 200, 'the server')
    expect((await page()).text).toBe('inner.example:3000')
    await one.kill()
    const wrong = { ...here.options, network: { maskRequestHost: 'a\r\nb: c' } }
    await expect(e2b.Sandbox.create(wrong)).rejects.toThrow(/maskRequestHost/)
  })
})
