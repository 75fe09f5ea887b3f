import { describe, expect, test } from 'vitest'
import { planOf } from '../../../test/conformance/world.ts'
import { assemble } from '../bubblewrap/seccomp.ts'
import { type ContainerContext, containerBody } from './launch.ts'
import { engineProfile } from './seccomp-json.ts'

const context: ContainerContext = {
  image: 'sha256:abc',
  agent: '/opt/agent',
  files: '/run/files',
  uid: 1000,
  gid: 1000,
  runtime: undefined,
  podman: false,
  seccomp: '{}',
  descriptors: 4096,
  processes: 4096,
  labels: { 'ringfence.owner': 'o', 'ringfence.epoch': '1-1' },
}
type Host = Record<string, unknown> & { readonly Mounts: readonly Record<string, unknown>[] }
const bodyOf = (spec: Record<string, unknown>, more: Partial<ContainerContext> = {}) => {
  const body = containerBody(planOf(spec), { ...context, ...more })
  return { body, host: body.HostConfig as Host }
}

describe('every container', () => {
  const { body, host } = bodyOf({})
  test.each<[string, unknown, unknown]>([
    ['drops every capability', host.CapDrop, ['ALL']],
    ['adds none', host.CapAdd, undefined],
    ['is not privileged', host.Privileged, false],
    ['gets no new privileges', (host.SecurityOpt as string[]).includes('no-new-privileges'), true],
    ['has the Ringfence seccomp profile', (host.SecurityOpt as string[]).includes('seccomp={}'), true],
    ['has a read-only root', host.ReadonlyRootfs, true],
    ['has no network', [host.NetworkMode, body.NetworkDisabled], ['none', true]],
    ['has private shared memory', host.IpcMode, 'private'],
    ['has no devices', host.Devices, undefined],
    ['writes no log', host.LogConfig, { Type: 'none' }],
    ['ends when its input is closed', [body.StdinOnce, host.AutoRemove], [true, true]],
    ['has a label with its owner', body.Labels, context.labels],
    ['starts the agent', [body.Entrypoint, body.Cmd], [['/.ringfence/agent'], ['container']]],
    ['runs as an unprivileged user', body.User, '1000:1000'],
    ['has no variables of Ringfence', body.Env, undefined],
    ['always has a process limit', host.PidsLimit, 1026],
  ])('%s', (_, found, wanted) => expect(found).toEqual(wanted))
})

describe('limits', () => {
  test('memory without swap', () => {
    const { host } = bodyOf({ limits: { memoryMb: 100 } })
    expect([host.Memory, host.MemorySwap, host.ShmSize]).toEqual([104857600, 104857600, 104857600])
  })
  test('processors', () => expect(bodyOf({ limits: { cpus: 0.5 } }).host.NanoCpus).toBe(500_000_000))
  test('the private /tmp is no larger than the disk', () =>
    expect(bodyOf({ limits: { diskMb: 20 } }).host.Tmpfs).toMatchObject({
      '/tmp': expect.stringMatching(/size=20971520$/),
    }))
  test('Podman gets its /tmp as a mount', () => {
    const { host } = bodyOf({ limits: { diskMb: 20 } }, { podman: true })
    expect(host.Tmpfs).toBeUndefined()
    expect(host.Mounts.at(-1)).toMatchObject({ Target: '/tmp', TmpfsOptions: { SizeBytes: 20971520 } })
  })
})

describe('mounts', () => {
  test('only the plan’s mounts, and Ringfence’s own', () => {
    const { host } = bodyOf({ read: ['/usr/bin/env'], workspace: '/tmp' })
    expect(host.Mounts.map(({ Source, Target, ReadOnly }) => [Source, Target, ReadOnly])).toEqual([
      ['/opt/agent', '/.ringfence/agent', true],
      ['/run/files/passwd', '/etc/passwd', true],
      ['/run/files/group', '/etc/group', true],
      ['/tmp', '/tmp', false],
      ['/usr/bin/env', '/usr/bin/env', true],
    ])
    expect(JSON.stringify(host)).not.toContain('docker.sock')
    expect(host.Binds).toBeUndefined()
  })
  test('mounts below a read-only grant are left out', () => {
    const { host } = bodyOf({ read: ['/usr/bin/env'] })
    expect(host.Mounts.at(-1)).toMatchObject({ BindOptions: { NonRecursive: true, Propagation: 'rprivate' } })
  })
})

test('the engine’s seccomp profile refuses what Ringfence’s filter refuses', () => {
  const profile = JSON.parse(engineProfile('x64')) as {
    architectures: string[]
    syscalls: { names: string[]; args?: unknown[] }[]
  }
  expect(profile.architectures).toEqual(['SCMP_ARCH_X86_64'])
  const names = profile.syscalls.flatMap((rule) => rule.names)
  for (const name of ['mount', 'bpf', 'io_uring_setup', 'keyctl', 'clone3', 'unshare', 'setns'])
    expect(names).toContain(name)
  expect(profile.syscalls.filter((rule) => rule.names[0] === 'unshare').length).toBe(8)
  expect(assemble('x64').length).toBeGreaterThan(100)
})

test('only for isolated commands the profile leaves mounts and namespaces to the agent, and nothing else', () => {
  type Profile = { readonly syscalls: readonly { readonly names: readonly string[] }[] }
  const refused = (...parts: Parameters<typeof engineProfile>[1] & string[]): readonly string[] =>
    (JSON.parse(engineProfile('x64', parts)) as Profile).syscalls.flatMap(({ names }) => names)
  const usual = new Set(refused())
  const isolating = new Set(refused('isolates'))
  const left = [...usual].filter((name) => !isolating.has(name)).sort()
  expect(left).toEqual([
    ...['clone', 'mount', 'mount_setattr', 'move_mount', 'open_tree', 'umount2', 'unshare'],
  ])
})
