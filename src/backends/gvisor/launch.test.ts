import { describe, expect, test } from 'vitest'
import { planOf } from '../../../test/conformance/world.ts'
import { type BundleContext, bundleOf } from './launch.ts'

const context: BundleContext = {
  agent: '/opt/agent',
  files: '/run/files',
  root: {
    copied: [],
    links: [{ path: '/bin', target: 'usr/bin' }],
    shown: [{ source: '/usr', target: '/usr', kind: 'dir' }],
  },
  uid: 1000,
  gid: 1000,
}
type Config = {
  readonly process: Record<string, unknown>
  readonly root: unknown
  readonly mounts: readonly {
    readonly destination: string
    readonly source: string
    readonly options: readonly string[]
  }[]
  readonly linux: { readonly namespaces: readonly { type: string }[] }
}
const configOf = (spec: Record<string, unknown>, more: Partial<BundleContext> = {}): Config =>
  bundleOf(planOf({ waive: ['fs.protect'], ...spec }), { ...context, ...more }).config as unknown as Config

describe('every bundle', () => {
  const config = configOf({})
  test('starts only the agent, without privileges', () => {
    expect(config.process).toMatchObject({
      args: ['/.ringfence/agent', 'container'],
      user: { uid: 1000, gid: 1000 },
      noNewPrivileges: true,
      capabilities: { bounding: [], effective: [], permitted: [], inheritable: [], ambient: [] },
    })
    expect(config.root).toEqual({ path: 'root', readonly: true })
  })
  test('has namespaces of its own', () =>
    expect(config.linux.namespaces.map(({ type }) => type)).toEqual([
      'pid',
      'network',
      'ipc',
      'uts',
      'mount',
      'cgroup',
    ]))
  test('shows the tools read-only', () =>
    expect(config.mounts.find(({ destination }) => destination === '/usr')?.options).toContain('ro'))
})

test('grants keep their mode', () => {
  const { mounts } = configOf({ workspace: '/var/tmp', read: ['/usr/bin/env'] })
  const options = (path: string) => mounts.find(({ destination }) => destination === path)?.options
  expect(options('/var/tmp')).toContain('rw')
  expect(options('/usr/bin/env')).toContain('ro')
})

test('runsc gets no limits: it is started in a cgroup that has them', () =>
  expect(Object.keys(configOf({ limits: { memoryMb: 100 } }).linux)).toEqual(['namespaces']))

test('each mount has a mount point in the sandbox’s own root', () => {
  const { points, links } = bundleOf(planOf({ waive: ['fs.protect'], workspace: '/var/tmp' }), context)
  expect(points).toContainEqual({ path: '/var/tmp', kind: 'dir' })
  expect(links).toEqual([{ path: '/bin', target: 'usr/bin' }])
})
