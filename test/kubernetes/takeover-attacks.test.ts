import { randomBytes } from 'node:crypto'
import { afterAll, afterEach, describe, expect, test } from 'vitest'
import type { BackendSandbox } from '../../src/backends/backend.ts'
import { ChannelAuthority, podHost } from '../../src/backends/kubernetes/authority.ts'
import { openChannel } from '../../src/host/net/pod-channel.ts'
import { planOf } from '../conformance/world.ts'
import { noFullCluster, secrets, testApi, testBackend, testSettings } from './lab.ts'

/** Attacks on the takeover of a Pod: a late, repeated or outdated takeover must neither get the sandbox nor end it. */

const MINUTES = 60_000
const plan = () => planOf({ backend: 'kubernetes', waive: ['net.offline'] })
const newId = (): string => `sb_${randomBytes(8).toString('hex')}`
const said = async (sandbox: BackendSandbox, script: string): Promise<string> =>
  String((await sandbox.exec({ argv: ['/bin/sh', '-c', script] })).stdout)
const generationBits = 32n

describe.skipIf(noFullCluster())('attacks on a takeover', { timeout: 3 * MINUTES }, () => {
  const server = () => testBackend({}, { outlives: true, owner: `attack-${randomBytes(6).toString('hex')}` })
  const [first, second, third] = [server(), server(), server()]
  const opened: BackendSandbox[] = []
  afterEach(async () => {
    for (const one of opened.splice(0)) await one.close().catch(() => {})
  })
  afterAll(() => Promise.all([first, second, third].map((one) => one.close())))

  const kept = async <S extends BackendSandbox>(opening: Promise<S>): Promise<S> => {
    const one = await opening
    opened.push(one)
    return one
  }
  const take = (by: typeof first, id: string, generation: number) =>
    kept(by.open(plan(), { id, generation, takesOver: true }))
  const podOf = async (id: string) => {
    const { pods } = await (await testApi()).listPods(`ringfence.dev/sandbox=${id}`)
    const [pod] = pods
    return { name: pod?.metadata?.name ?? '', address: pod?.status?.podIP ?? '', count: pods.length }
  }

  test('a server that wakes up in the middle of its takeover neither gets the Pod nor removes it', async () => {
    const id = newId()
    await kept(first.open(plan(), { id }))
    const winner = await take(third, id, 3)
    await said(winner, 'echo winner > /tmp/file')
    // It was to be generation 2, slept, and goes on where it was: with the claim.
    await expect(take(second, id, 2)).rejects.toMatchObject({ code: 'conflict' })
    await expect(take(first, id, 1)).rejects.toMatchObject({ code: 'conflict' })
    expect(await said(winner, 'cat /tmp/file')).toBe('winner\n')
    expect((await podOf(id)).count).toBe(1)
  })

  test('of two servers with the same generation at most one has the sandbox, and the other one ends nothing', async () => {
    const id = newId()
    const old = await kept(first.open(plan(), { id }))
    await said(old, 'echo kept > /tmp/file')
    const tried = await Promise.allSettled([take(second, id, 2), take(third, id, 2)])
    const won = tried.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []))
    expect(won.length).toBe(1)
    expect(await said(won[0] as BackendSandbox, 'cat /tmp/file')).toBe('kept\n')
    expect((await podOf(id)).count).toBe(1)
  })

  test('of two servers with different generations the later one has it', async () => {
    const id = newId()
    await kept(first.open(plan(), { id }))
    const [, later] = await Promise.allSettled([take(second, id, 2), take(third, id, 3)])
    // If the earlier one was quicker, the later one replaced it; it can also have come in between, and tries again.
    const winner = later.status === 'fulfilled' ? later.value : await take(third, id, 4)
    expect(await said(winner, 'echo alive')).toBe('alive\n')
    expect((await podOf(id)).count).toBe(1)
  })

  test('an old connection that comes back says nothing that the agent hears', async () => {
    const id = newId()
    const old = await kept(first.open(plan(), { id }))
    await said(old, 'echo kept > /tmp/file')
    const winner = await take(second, id, 2)
    // The first server does not know yet: what it starts, writes or freezes must not arrive.
    await expect(said(old, 'rm /tmp/file')).rejects.toThrow()
    await expect(old.files.write('/tmp/file', [Buffer.from('overwritten')])).rejects.toThrow()
    await old.close()
    expect(await said(winner, 'cat /tmp/file')).toBe('kept\n')
  })

  test('epochs that were used, foreign certificates and other Pods do not replace the connection', async () => {
    const id = newId()
    await kept(first.open(plan(), { id }))
    const winner = await take(second, id, 2)
    const { name, address } = await podOf(id)
    const api = await testApi()
    const authority = await ChannelAuthority.of(api)
    const { port } = testSettings()
    const target = { pod: name, host: podHost(name), address, port, timeoutMs: 5000 }
    const as = (identity: ReturnType<ChannelAuthority['forPod']>, epoch: bigint) =>
      openChannel({ ...target, identity, epoch })
    const greatest = 2n ** 63n
    for (const epoch of [0n, 1n, (1n << generationBits) + 1n, (2n << generationBits) + 1n])
      await expect(as(authority.forControlPlane(), epoch)).rejects.toMatchObject({ code: 'conflict' })
    // SECURITY: a Pod has a certificate of the same authority.
    await expect(as(authority.forPod(name, 60), greatest)).rejects.toThrow('cannot be reached')
    const stranger = await ChannelAuthority.of(secrets())
    const forged = { ...stranger.forControlPlane(), authority: authority.certificate }
    await expect(as(forged, greatest)).rejects.toThrow('cannot be reached')
    expect(await said(winner, 'echo alive')).toBe('alive\n')
  })
})
