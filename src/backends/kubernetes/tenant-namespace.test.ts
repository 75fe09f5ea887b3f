import { expect, test } from 'vitest'
import { differenceOf } from './runtime-probe.ts'
import { settingsOf } from './settings.ts'
import { limitsObject, namespaceOf, quotaObject } from './tenant-namespace.ts'

const settings = settingsOf({
  agent_image: 'a',
  namespace: 'rf',
  tenant_namespaces: 'create',
  tenant_quota: { pods: 3, cpus: 1.5, memory_mb: 100 },
})

test('every tenant has its own namespace', () => {
  expect(namespaceOf(settings, undefined)).toBe('rf')
  expect(namespaceOf(settings, 'acme')).toBe('rf-acme')
  expect(namespaceOf(settingsOf({ agent_image: 'a', namespace: 'rf' }), 'acme')).toBe('rf')
  const odd = ['A', 'a', 'a.b', 'a-b', 'a_b', 'ü', 'x'.repeat(63), 'x'.repeat(64)]
  const names = odd.map((tenant) => namespaceOf(settings, tenant))
  expect(new Set(names).size).toBe(odd.length)
  for (const name of names) expect(name).toMatch(/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])$/)
  // No tenant can choose the name that the hash of another tenant gives.
  const hashed = namespaceOf(settings, 'a.b').slice('rf-'.length)
  expect(namespaceOf(settings, hashed)).not.toBe(namespaceOf(settings, 'a.b'))
})

test('a tenant namespace has a quota and default limits', () => {
  expect(quotaObject(settings).spec?.hard).toEqual({
    pods: '3',
    'requests.cpu': '1.5',
    'limits.cpu': '1.5',
    'requests.memory': '100Mi',
    'limits.memory': '100Mi',
  })
  expect(limitsObject(settings).spec?.limits?.[0]).toMatchObject({ _default: { cpu: '1000m' } })
})

test('the kernel of a RuntimeClass is compared with the kernel of the node', () => {
  const node = { boot: 'n', version: '#1 SMP Debian' }
  const gvisor = { boot: 'g', version: '#1 SMP Sun Jan 10 15:06:54 PST 2016' }
  expect(differenceOf('gvisor', gvisor, node)).toBeUndefined()
  expect(differenceOf('gvisor', { ...gvisor, boot: '' }, node)).toBeUndefined()
  expect(differenceOf('microvm', { ...node, boot: 'm' }, node)).toBeUndefined()
  expect(differenceOf('gvisor', { ...node, boot: 'm' }, node)).toContain('Debian')
  expect(differenceOf('microvm', node, node)).toContain('kernel of their node')
  expect(differenceOf('gvisor', { ...gvisor, boot: 'n' }, node)).toContain('kernel of their node')
  expect(differenceOf('microvm', { ...node, boot: '' }, node)).toContain('boot id')
  expect(differenceOf('microvm', undefined, node)).toContain('cannot be read')
})
