import { describe, expect, test } from 'vitest'
import { planOf } from '../../prove/world.ts'
import { podOf, policyOf, secretOf } from './launch.ts'
import { settingsOf } from './settings.ts'

const settings = settingsOf({
  agent_image: 'agent:1',
  memory_mb: 300,
  cpus: 2,
  disk_mb: 100,
  runtime_class: 'gvisor',
})
const context = {
  name: 'rf-1',
  image: 'debian:12',
  uid: 1_000_007,
  labels: {},
  annotations: {},
  patienceSecs: 60,
  takeoverSecs: 0,
}
const pod = (spec: Record<string, unknown> = {}, more: Partial<Parameters<typeof podOf>[2]> = {}) =>
  podOf(planOf({ backend: 'kubernetes', ...spec }), settings, { ...context, ...more })
const containers = (made: ReturnType<typeof pod>) => [
  ...(made.spec?.initContainers ?? []),
  ...(made.spec?.containers ?? []),
]

describe('every Pod satisfies the Pod Security level restricted', () => {
  test('for the Pod', () => {
    expect(pod().spec).toMatchObject({
      automountServiceAccountToken: false,
      enableServiceLinks: false,
      hostNetwork: false,
      hostPID: false,
      hostIPC: false,
      restartPolicy: 'Never',
      activeDeadlineSeconds: 86_460,
      runtimeClassName: 'gvisor',
      securityContext: {
        runAsNonRoot: true,
        runAsUser: 1_000_007,
        seccompProfile: { type: 'RuntimeDefault' },
      },
    })
  })

  test('for each container, with requests and limits', () => {
    for (const { securityContext, resources } of containers(pod())) {
      expect(securityContext).toEqual({
        allowPrivilegeEscalation: false,
        privileged: false,
        readOnlyRootFilesystem: true,
        runAsNonRoot: true,
        capabilities: { drop: ['ALL'] },
      })
      expect(resources?.requests).toEqual(resources?.limits)
      expect(Object.keys(resources?.limits ?? {})).toEqual(['cpu', 'memory', 'ephemeral-storage'])
    }
  })

  test('without volumes of the node, and with a size limit on every writable volume', () => {
    const volumes = pod().spec?.volumes ?? []
    expect(volumes.flatMap((one) => Object.keys(one)).filter((name) => name !== 'name')).toEqual(
      volumes.map(() => 'emptyDir'),
    )
    expect(volumes.find(({ name }) => name === 'tmp')?.emptyDir?.sizeLimit).toBe('100Mi')
  })
})

test('only the channel container has the key, and the sandbox container has no variables of the cluster', () => {
  const [installer, channel, sandbox] = containers(pod())
  expect(channel?.env?.map(({ valueFrom }) => valueFrom?.secretKeyRef?.name)).toEqual([
    'rf-1',
    'rf-1',
    'rf-1',
  ])
  expect([installer?.env, sandbox?.env]).toEqual([undefined, undefined])
  expect(sandbox?.command).toEqual(['/.ringfence/agent', 'pod', '/.ringfence-channel/agent'])
})

test('requested limits replace the defaults; limits that protect this host do not apply', () => {
  const limitsOf = (made: ReturnType<typeof pod>) => made.spec?.containers[1]?.resources?.limits
  expect(limitsOf(pod({ limits: { memoryMb: 64, cpus: 0.5 } }))).toMatchObject({
    cpu: '500m',
    memory: '112Mi',
  })
  expect(limitsOf(pod())).toEqual({ cpu: '2000m', memory: '348Mi', 'ephemeral-storage': '100Mi' })
})

test('a read-only mount is writable only in the channel container', () => {
  const [, channel, sandbox] = containers(pod({ read: ['/usr/share'] }))
  const of = (one: typeof channel) => one?.volumeMounts?.find(({ name }) => name === 'mount-0')
  const mount = { name: 'mount-0', mountPath: '/usr/share', subPath: '.ringfence-dir', readOnly: true }
  expect(of(sandbox)).toEqual(mount)
  expect(of(channel)).toEqual({ name: 'mount-0', mountPath: '/.ringfence-mounts/0' })
})

test('the key Secret is owned by its Pod, so that the cluster deletes both', () => {
  expect(secretOf({ name: 'rf-1', uid: 'u' }, { key: 'k' }).metadata?.ownerReferences).toEqual([
    { apiVersion: 'v1', kind: 'Pod', name: 'rf-1', uid: 'u' },
  ])
  expect(pod({}, { owner: { name: 'server', uid: 'o' } }).metadata?.ownerReferences).toEqual([
    { apiVersion: 'v1', kind: 'Pod', name: 'server', uid: 'o' },
  ])
})

test('the network policy denies all egress, and allows ingress only to the channel port', () => {
  expect(policyOf(settings).spec).toEqual({
    podSelector: { matchLabels: { 'ringfence.dev/part': 'sandbox' } },
    policyTypes: ['Ingress', 'Egress'],
    ingress: [{ ports: [{ protocol: 'TCP', port: 7443 }] }],
    egress: [],
  })
})
