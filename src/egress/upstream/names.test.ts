import { lookup } from 'node:dns/promises'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { Cancellation } from '../cancel.ts'
import { addresses, NameServer, NXDOMAIN } from '../testkit/name-server.ts'
import { Names } from './names.ts'

const ends: (() => void)[] = []
afterEach(() => {
  for (const end of ends.splice(0)) end()
})

type Answering = Parameters<typeof NameServer.start>[0]

/** The names of a host with this name server and these files. */
async function namesWith(
  answer: Answering,
  files: { readonly hosts?: string; readonly resolvConf?: string } = {},
) {
  const server = await NameServer.start(answer)
  const dir = mkdtempSync(join(tmpdir(), 'names-'))
  ends.push(() => {
    server.close()
    rmSync(dir, { recursive: true })
  })
  writeFileSync(join(dir, 'hosts'), files.hosts ?? '')
  writeFileSync(join(dir, 'resolv.conf'), files.resolvConf ?? 'nameserver 127.0.0.1\nsearch .\n')
  const paths = {
    hosts: join(dir, 'hosts'),
    resolvConf: join(dir, 'resolv.conf'),
    nsswitch: join(dir, 'nsswitch'),
  }
  const names = new Names({ paths, servers: [server.address], asksItself: true })
  return { names, server, resolve: names.for(), paths }
}

/** Starts lookups that end when they are cancelled. */
function startMany(names: Names, owner: { tenant: string; keyId: string }, count: number) {
  const until = new Cancellation()
  const all = Array.from({ length: count }, (_, at) =>
    Promise.resolve(names.for(owner)(`n${at}.slow.test`, until)).then(
      () => 'answered',
      () => 'ended',
    ),
  )
  const end = (): Promise<string[]> => {
    until.cancel(new Error('the client has gone'))
    return Promise.all(all)
  }
  ends.push(() => void end())
  return { end }
}

const until = async (isTrue: () => boolean): Promise<void> => {
  while (!isTrue()) await new Promise((next) => setTimeout(next, 5))
}

const slowExcept =
  (name: string): Answering =>
  (question) =>
    question.name === name ? addresses(question, '192.0.2.1') : undefined

describe('a name of the hosts file', () => {
  it('is not asked for, and changes with the file', async () => {
    const { resolve, server, paths } = await namesWith(() => undefined, { hosts: '192.0.2.1 a.test\n' })
    expect(await resolve('a.test')).toEqual(['192.0.2.1'])
    writeFileSync(paths.hosts, '192.0.2.22 a.test\n')
    expect(await resolve('a.test')).toEqual(['192.0.2.22'])
    expect(await resolve('192.0.2.3')).toEqual(['192.0.2.3'])
    expect(server.asked).toEqual([])
  })
})

describe('answers', () => {
  it('of both families are one list', async () => {
    const { resolve, server } = await namesWith((question) =>
      addresses(question, '192.0.2.1', '2001:db8::1', '192.0.2.2'),
    )
    const found = await resolve('a.test')
    expect([...found].sort()).toEqual(['192.0.2.1', '192.0.2.2', '2001:db8::1'])
    expect(found.filter((one) => one.includes('.'))).toEqual(['192.0.2.1', '192.0.2.2'])
    expect(server.asked.map(({ type }) => type).sort()).toEqual(['A', 'AAAA'])
  })

  it.each([['_srv.a.test'], ['xn--bcher-kva.test'], ['v6only.test'], ['dot.test.']])(
    'of %s with only one address',
    async (name) => {
      const { resolve, server } = await namesWith((question) => addresses(question, '2001:db8::1'))
      expect(await resolve(name)).toEqual(['2001:db8::1'])
      expect(server.names).toEqual([name.replace(/\.$/, '')])
    },
  )

  it('follow aliases to the end', async () => {
    const { resolve } = await namesWith(({ type }) => ({
      records: [
        { alias: 'b.test' },
        { name: 'b.test', alias: 'c.test' },
        ...(type === 'A' ? [{ name: 'c.test', address: '192.0.2.7' }] : []),
      ],
    }))
    expect(await resolve('a.test')).toEqual(['192.0.2.7'])
  })

  it('that lead to no address are empty', async () => {
    const { resolve } = await namesWith(() => ({
      records: [{ alias: 'b.test' }, { name: 'b.test', alias: 'a.test' }],
    }))
    expect(await resolve('a.test')).toEqual([])
  })

  it('that do not fit into a datagram come over TCP, and only so many of them are kept', async () => {
    const many = Array.from({ length: 2000 }, (_, at) => `192.0.${at >> 8}.${at & 255}`)
    const { resolve, server } = await namesWith((question) =>
      question.tcp ? addresses(question, ...many) : { truncated: true },
    )
    expect(await resolve('a.test')).toEqual(many.slice(0, 64))
    expect(server.asked.some(({ tcp }) => tcp)).toBe(true)
  })

  it('of one family count if the other fails', async () => {
    const { resolve } = await namesWith((question) =>
      question.type === 'A' ? addresses(question, '192.0.2.1') : { rcode: 2 },
    )
    expect(await resolve('a.test')).toEqual(['192.0.2.1'])
  })

  it.each([
    ['refused', { rcode: 5 }],
    ['without sense', { bytes: Buffer.from('no answer at all') }],
  ])(
    'that are %s give no address',
    async (_, reply) => {
      const { resolve } = await namesWith(() => reply)
      const given = await Promise.resolve(resolve('a.test')).catch(() => [])
      expect(given).toEqual([])
    },
    30_000,
  )
})

describe('search domains', () => {
  const resolvConf = 'nameserver 127.0.0.1\nsearch one.test two.test\noptions ndots:2\n'

  it('are tried in order, until one has the name', async () => {
    const { resolve, server } = await namesWith(
      (question) =>
        question.name === 'db.two.test' ? addresses(question, '192.0.2.1') : { rcode: NXDOMAIN },
      { resolvConf },
    )
    expect(await resolve('db')).toEqual(['192.0.2.1'])
    expect(server.names).toEqual(['db.one.test', 'db.two.test'])
  })

  it('are not tried after a failure that is no answer', async () => {
    const { resolve, server } = await namesWith(() => ({ rcode: 5 }), { resolvConf })
    await expect(resolve('db')).rejects.toThrow('EREFUSED')
    expect(server.names).toEqual(['db.one.test'])
  })
})

describe('names that are never answered', () => {
  it('leave the threads of the process free', async () => {
    const { names, server } = await namesWith(() => undefined)
    const slow = startMany(names, { tenant: 'evil', keyId: '1' }, 60)
    await until(() => server.names.length === 60)
    expect((await lookup('localhost')).address).toMatch(/^(127\.|::1)/)
    expect((await readFile('/dev/null')).length).toBe(0)
    expect(new Set(await slow.end())).toEqual(new Set(['ended']))
  })

  it('wait for their own tenant and not for others', async () => {
    const { names, server } = await namesWith(slowExcept('good.test'))
    const slow = startMany(names, { tenant: 'evil', keyId: '1' }, 200)
    await until(() => server.names.length >= 64)
    expect(await names.for({ tenant: 'good', keyId: '1' })('good.test')).toEqual(['192.0.2.1'])
    expect(server.names.length).toBe(65)
    expect(new Set(await slow.end())).toEqual(new Set(['ended']))
    // What they held is free again.
    expect(await names.for({ tenant: 'evil', keyId: '1' })('good.test')).toEqual(['192.0.2.1'])
  })

  it('are refused if too many of a tenant wait already', async () => {
    const { names } = await namesWith(() => undefined)
    startMany(names, { tenant: 'evil', keyId: '1' }, 64 + 1024)
    await expect(names.for({ tenant: 'evil', keyId: '1' })('one.test')).rejects.toThrow('too many names')
  })

  it('are asked for no longer than until the end of their connection', async () => {
    const { resolve, server } = await namesWith(() => undefined)
    const gone = new Cancellation()
    const waiting = resolve('a.test', gone)
    await until(() => server.asked.length > 0)
    gone.cancel(new Error('the client has gone'))
    await expect(waiting).rejects.toThrow('the client has gone')
  })

  it('end by themselves', async () => {
    const { resolve } = await namesWith(() => undefined)
    await expect(resolve('a.test')).rejects.toThrow('ETIMEOUT')
  }, 60_000)
})

it('a host without name servers leaves names to the C library', async () => {
  const { resolve, server } = await namesWith(() => undefined, { resolvConf: '' })
  expect((await resolve('localhost')).length).toBeGreaterThan(0)
  expect(server.asked).toEqual([])
})
