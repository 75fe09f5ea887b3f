import { connect } from 'node:tls'
import { afterAll, describe, expect, test } from 'vitest'
import { ChannelAuthority, podHost } from '../../src/backends/kubernetes/authority.ts'
import { openChannel } from '../../src/host/net/pod-channel.ts'
import { planOf } from '../conformance/world.ts'
import { noFullCluster, runningPod, testApi, testBackend, testSettings } from './lab.ts'

const MINUTES = 60_000

describe.skipIf(noFullCluster())('the channel to a Pod', () => {
  const backend = testBackend()
  afterAll(() => backend.close())

  test('accepts only the control plane, and every epoch once', { timeout: 3 * MINUTES }, async () => {
    const api = await testApi()
    const sandbox = await backend.open(planOf({ backend: 'kubernetes', waive: ['net.offline'] }))
    try {
      const { name, status } = await runningPod(api)
      const address = status?.podIP ?? ''
      const { port } = testSettings()
      const authority = await ChannelAuthority.of(api)
      const target = { pod: name, host: podHost(name), address, port, timeoutMs: 5000 }
      const as = (identity: ReturnType<ChannelAuthority['forPod']>, epoch: bigint) =>
        openChannel({ ...target, identity, epoch })
      // The certificate of another Pod is of the same authority.
      await expect(as(authority.forPod('rf-other', 60), 2n ** 60n)).rejects.toThrow('cannot be reached')
      await expect(as(authority.forControlPlane(), 1n)).rejects.toMatchObject({ code: 'conflict' })
      await expect(
        openChannel({
          ...target,
          host: podHost('rf-other'),
          identity: authority.forControlPlane(),
          epoch: 2n ** 60n,
        }),
      ).rejects.toThrow('cannot be reached')
      expect(await withoutCertificate(address, port)).toBe('refused')
      // None of this has harmed the sandbox.
      const { stdout } = await sandbox.exec({ argv: ['/bin/echo', 'alive'] })
      expect(String(stdout)).toBe('alive\n')
      // The key was needed once.
      expect(await api.readSecret(name)).toBeUndefined()
    } finally {
      await sandbox.close()
    }
  })

  test('cannot be used or closed by programs in the sandbox', { timeout: 3 * MINUTES }, async () => {
    const sandbox = await backend.open(planOf({ backend: 'kubernetes', waive: ['net.offline'] }))
    try {
      const script = [
        'for i in $(seq 40); do (exec 3<>/dev/tcp/127.0.0.1/7443; echo garbage >&3; sleep 0.2) & done; wait',
        'ls /.ringfence-channel; kill -9 -1',
      ].join('\n')
      await sandbox.exec({ argv: ['/bin/bash', '-c', script] })
      const { stdout } = await sandbox.exec({ argv: ['/bin/echo', 'alive'] })
      expect(String(stdout)).toBe('alive\n')
    } finally {
      await sandbox.close()
    }
  })
})

const withoutCertificate = (host: string, port: number): Promise<string> =>
  new Promise((resolve) => {
    const socket = connect({ host, port, rejectUnauthorized: false })
    socket.on('error', () => resolve('refused'))
    socket.on('close', () => resolve('refused'))
    socket.on('data', () => resolve('answered'))
    socket.write('rfchan1\n\xff\xff\xff\xff\xff\xff\xff\x7f', 'latin1')
  })
