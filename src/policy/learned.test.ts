import { describe, expect, test } from 'vitest'
import type { Decision } from '../model/decision.ts'
import { gathered, learnedPolicy, usesOutside } from './learned.ts'

const use = (kind: 'read' | 'write' | 'start', path: string) => ({ kind, path })

describe('accesses observed during a run', () => {
  test('paths that every sandbox shows are omitted', () => {
    const uses = [
      use('read', '/usr/lib/x'),
      use('read', '/w/a'),
      use('read', '/srv/a/../b'),
      use('read', '/etc/hosts'),
      use('write', '/srv/c'),
      use('read', '/'),
      use('read', '/workspace-other'),
    ]
    expect(usesOutside(uses, 'read', '/w')).toEqual(['/srv/b', '/workspace-other'])
    expect(usesOutside(uses, 'write', '/w')).toEqual(['/srv/c'])
  })

  test('a few files are listed, many are replaced by their directory', () => {
    const many = Array.from({ length: 6 }, (_, i) => `/srv/many/${i}`)
    expect(gathered(['/srv/a', '/srv/b', ...many, '/srv/many/deep/x'])).toEqual([
      '/srv/a',
      '/srv/b',
      '/srv/many',
    ])
    expect(gathered(['/a', '/b', '/c', '/d', '/e', '/f'])).toEqual(['/a', '/b', '/c', '/d', '/e', '/f'])
  })
})

describe('the learned policy', () => {
  const decision: Decision = {
    action: 'sandbox',
    reason: '',
    rules: [],
    commands: [
      { argv: ['npm', 'install'], action: 'sandbox', reason: '' },
      { argv: ['ls', '-l'], action: 'sandbox', reason: '' },
    ],
  }

  test('grants no more than was observed', () => {
    const text = learnedPolicy({
      workspace: '/w',
      line: 'npm install && ls -l',
      decision,
      reads: ['/srv/a"b'],
      hosts: ['registry.npmjs.org:443'],
      leftOut: [{ what: '/root/.ssh/id\nrsa', why: 'secret' }],
    })
    expect(text).toContain('allowed_host_prefixes = ["/w", "/srv/a\\"b"]')
    expect(text).toContain('prefix = ["npm", "install"]')
    expect(text).toContain('prefix = ["ls"]')
    expect(text).toContain('allow_hosts = ["registry.npmjs.org:443"]')
    expect(text).toContain('# left out: /root/.ssh/id rsa (secret)')
  })

  test('has no network without hosts', () => {
    const text = learnedPolicy({ workspace: '/w', line: 'ls', decision, reads: [], hosts: [], leftOut: [] })
    expect(text).toContain('allowed_network_modes = ["offline"]')
    expect(text).not.toContain('[network]')
  })
})
