import { describe, expect, test } from 'vitest'
import type { Config } from '../../model/config.ts'
import type { Spec } from '../../model/spec.ts'
import { sandboxPolicyOf } from '../plan.ts'
import { assertSpecPermitted, narrowed, privateFor, tenantGrants } from './tenancy.ts'

const grants = (config: Config, tenant = 'acme') =>
  tenantGrants(config, tenant, {
    home: '/home/op',
    real: (path) => (path === '/srv/link' ? '/data/real' : path),
  })
const refusal = (config: Config, spec: Spec): unknown => {
  try {
    assertSpecPermitted(grants(config), spec)
    return undefined
  } catch (error) {
    return (error as { code?: string; hint?: string }).hint
  }
}

describe('a tenant that the configuration does not name', () => {
  test('may use isolating backends and networks, and nothing else', () => {
    const { backends, networkModes, hostPaths, waive, images, max } = grants({})
    expect(backends).not.toContain('native')
    expect(networkModes).toEqual(['offline', 'loopback', 'fetch'])
    expect([hostPaths, waive, images]).toEqual([[], [], []])
    expect(max).toEqual({})
  })

  test('the error shows the complete setting that would permit it', () => {
    expect(refusal({}, { network: { mode: 'full' } })).toContain(
      '`network_modes = ["offline", "loopback", "fetch", "full"]` in [[tenant]] with name = "acme"',
    )
  })
})

describe('a host path', () => {
  const config: Config = {
    tenant: [
      {
        name: 'acme',
        host_paths: [
          { path: '~/work/', mode: 'rw' },
          { path: '/srv/link', mode: 'ro' },
        ],
      },
    ],
  }
  test.each<[string, Spec, boolean]>([
    ['itself', { workspace: '/home/op/work' }, true],
    ['below', { write: ['/home/op/work/a//b/.'] }, true],
    ['by its real name', { read: ['/data/real/x'] }, true],
    ['to read, for writing', { write: ['/data/real/x'] }, false],
    ['beside', { read: ['/home/op/workshop'] }, false],
    ['above', { read: ['/home/op'] }, false],
    ['with `..`', { read: ['/home/op/work/../.ssh'] }, false],
    ['relative', { read: ['home/op/work'] }, false],
  ])('%s', (_, spec, isPermitted) => {
    expect(refusal(config, spec) === undefined).toBe(isPermitted)
  })
})

describe('private addresses', () => {
  const opened = ['10.0.0.5:5432', 'intranet.example', '192.168.0.0/16']
  const of = (allow_hosts: string[], secret: Config['secret'] = []) =>
    privateFor(grants({ tenant: [{ name: 'acme', allow_hosts }], secret }), opened)
  test('are reachable if the tenant is granted them by name', () => {
    expect(of([])).toEqual([])
    expect(of(['*'])).toEqual([])
    expect(of(['10.0.0.5'])).toEqual([])
    expect(of(['10.0.0.5:5432'])).toEqual(['10.0.0.5:5432'])
    expect(of(['intranet.example:443'])).toEqual(['intranet.example:443'])
    expect(of([], [{ name: 'S', hosts: ['http://intranet.example:80'], tenants: ['acme'] }])).toEqual([
      'intranet.example:80',
    ])
    expect(of([], [{ name: 'S', hosts: ['http://intranet.example:80'], tenants: ['other'] }])).toEqual([])
  })
})

test('a tenant’s policy is narrower than the operator’s, never wider', () => {
  const policy = sandboxPolicyOf(
    {
      policy: { allowed_network_modes: ['offline', 'fetch'], max_memory_mb: 512 },
      network: { allow_hosts: ['*.example.com'] },
    },
    '/home/op',
  )
  const tenant = {
    name: 'acme',
    network_modes: ['fetch', 'full'] as const,
    max_memory_mb: 4096,
    allow_hosts: ['a.example.com', 'evil.org'],
  }
  const narrow = narrowed(policy, grants({ tenant: [tenant] }))
  expect(narrow.networkModes).toEqual(['fetch'])
  expect(narrow.max.memoryMb).toBe(512)
  expect(narrow.defaultHosts).toEqual(['a.example.com'])
})
