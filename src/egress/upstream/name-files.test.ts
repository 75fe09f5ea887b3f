import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { asksDns, candidatesOf, NameFiles, parseHosts, parseResolvConf } from './name-files.ts'

describe('the hosts file', () => {
  it('gives every address of a name, in any case, in the order of its lines', () => {
    const hosts = parseHosts(
      [
        '127.0.0.1 localhost # us',
        '::1\tlocalhost ip6-localhost',
        '10.0.0.1 DB.corp db',
        '10.0.0.2 db db',
      ].join('\r\n'),
    )
    expect(hosts.get('localhost')).toEqual(['127.0.0.1', '::1'])
    expect(hosts.get('db.corp')).toEqual(['10.0.0.1'])
    expect(hosts.get('db')).toEqual(['10.0.0.1', '10.0.0.2'])
    expect(hosts.get('us')).toBeUndefined()
  })

  it('skips what is no address', () => {
    expect(parseHosts('# 10.0.0.1 a\nfe80::1%lo0 a\n127.1 a\nname a\n\n10.0.0.3').size).toBe(0)
  })
})

describe('resolv.conf', () => {
  const server = 'nameserver 10.0.0.53\n'

  it('gives the last list of domains and the dots', () => {
    const text = `${server}domain old.test\nsearch a.test b.test.\noptions timeout:1 ndots:5 # many\n; search c.test`
    expect(parseResolvConf(text, 'host')).toEqual({ domains: ['a.test', 'b.test'], ndots: 5 })
    expect(parseResolvConf(`${server}search a.test\ndomain b.test other`, 'host')?.domains).toEqual([
      'b.test',
    ])
  })

  it('searches the domain of the machine by default', () => {
    expect(parseResolvConf(server, 'one.corp.test')).toEqual({ domains: ['corp.test'], ndots: 1 })
    expect(parseResolvConf(server, 'one')).toEqual({ domains: [], ndots: 1 })
  })

  it('cannot be used without a server', () => {
    expect(parseResolvConf('search a.test', 'host')).toBeUndefined()
    expect(parseResolvConf('#nameserver 10.0.0.53\nnameserver', 'host')).toBeUndefined()
  })

  it('has a largest number of dots', () => {
    expect(parseResolvConf(`${server}options ndots:99 ndots:x`, 'host')?.ndots).toBe(15)
  })
})

it('nsswitch.conf says whether name servers are asked', () => {
  expect(asksDns('passwd: files\nhosts: files mdns4_minimal [NOTFOUND=return] dns\n')).toBe(true)
  expect(asksDns('hosts:\tfiles resolve\nnetworks: dns')).toBe(false)
  expect(asksDns('')).toBe(true)
})

describe('the names that are asked for', () => {
  const rules = { domains: ['a.test', 'b.test'], ndots: 2 }

  it.each([
    ['one', ['one.a.test', 'one.b.test', 'one']],
    ['one.two', ['one.two.a.test', 'one.two.b.test', 'one.two']],
    ['one.two.three', ['one.two.three', 'one.two.three.a.test', 'one.two.three.b.test']],
    ['one.', ['one']],
  ])('for `%s`', (name, names) => expect(candidatesOf(name, rules)).toEqual(names))

  it('holds each name once', () => {
    expect(candidatesOf('one', { domains: [''], ndots: 1 })).toEqual(['one'])
  })
})

it('files are read again when they have changed, appear or disappear', () => {
  const dir = mkdtempSync(join(tmpdir(), 'names-'))
  const paths = {
    hosts: join(dir, 'hosts'),
    resolvConf: join(dir, 'resolv.conf'),
    nsswitch: join(dir, 'nsswitch'),
  }
  const files = new NameFiles(paths)
  expect([files.addressesOf('a.test'), files.search]).toEqual([[], undefined])
  writeFileSync(paths.hosts, '10.0.0.1 a.test\n')
  writeFileSync(paths.resolvConf, 'nameserver 10.0.0.53\nsearch x.test\n')
  expect([files.addressesOf('A.test'), files.search?.domains]).toEqual([['10.0.0.1'], ['x.test']])
  writeFileSync(paths.hosts, '10.0.0.22 a.test\n')
  writeFileSync(paths.nsswitch, 'hosts: files sss\n')
  expect([files.addressesOf('a.test'), files.search]).toEqual([['10.0.0.22'], undefined])
  rmSync(dir, { recursive: true })
  expect([files.addressesOf('a.test'), files.search]).toEqual([[], undefined])
})
