import { tmpdir } from 'node:os'
import { expect, test } from 'vitest'
import { planOf } from '../../../test/conformance/world.ts'
import type { Plan } from '../../model/plan.ts'
import type { PodView } from './cluster-api.ts'
import type { PodParts } from './pod.ts'
import { PodPool } from './pod-pool.ts'
import { settingsOf } from './settings.ts'

const LABELS = { 'ringfence.dev/server': 'one' }
const POOL = 'ringfence.dev/pool'

/** A fake cluster: it keeps Pods, and each of them runs at once. Tests on a real one are in test/kubernetes. */
class FakeCluster {
  readonly pods: PodView[] = []
  made = 0

  listPods = async (selector: string, field = '') => ({
    pods: this.pods.filter(
      ({ metadata }) =>
        field.endsWith(`=${metadata?.name}`) === (field !== '') &&
        selector.split(',').every((one) => {
          const [name = '', value] = one.split('=')
          const label = metadata?.labels?.[name]
          return value === undefined ? label !== undefined : label === value
        }),
    ),
    version: '',
  })
  createPod = async (pod: PodView) => {
    const status = { phase: 'Running', conditions: [{ type: 'Ready', status: 'True' }] }
    const made = {
      ...pod,
      metadata: { ...pod.metadata, uid: `u${this.pods.length}`, resourceVersion: '1' },
      status,
    }
    this.pods.push(made as PodView)
    this.made++
    return made
  }
  deletePod = async (name: string) => {
    const at = this.pods.findIndex(({ metadata }) => metadata?.name === name)
    if (at >= 0) this.pods.splice(at, 1)
  }
  deleteOwnPod = async (name: string, labels: Readonly<Record<string, string>>) => {
    const selector = Object.entries(labels).map(([key, value]) => `${key}=${value}`)
    const { pods } = await this.listPods(selector.join(','), `metadata.name=${name}`)
    if (pods.length > 0) await this.deletePod(name)
  }
  createSecret = async () => undefined
  lock = async () => true
  unlock = async () => undefined
}

function poolOf(cluster: FakeCluster, labels: Readonly<Record<string, string>> = LABELS): PodPool {
  const parts = {
    api: cluster,
    authority: { forPod: () => ({ certificate: '', key: '', authority: '' }) },
    settings: settingsOf({ agent_image: 'agent', namespace: 'rf' }),
    labels,
    takeoverSecs: 0,
  }
  return new PodPool(parts as unknown as PodParts, 2)
}

const plan = (memoryMb: number): Plan => planOf({ workspace: tmpdir(), limits: { memoryMb } })
const kindsIn = ({ pods }: FakeCluster): number =>
  new Set(pods.map(({ metadata }) => metadata?.labels?.[POOL])).size

test('ever new kinds of Pods replace the oldest ones', { timeout: 30_000 }, async () => {
  const cluster = new FakeCluster()
  const pool = poolOf(cluster)
  for (let n = 1; n <= 22; n++) {
    expect(await pool.take(plan(100 + n), 'image')).toBeUndefined()
    await expect.poll(() => cluster.made, { timeout: 5000 }).toBe(2 * n)
  }
  await expect.poll(() => [cluster.pods.length, kindsIn(cluster)]).toEqual([32, 16])
  await pool.close()
  expect(cluster.pods).toEqual([])
})

test('a server removes only the Pods that it created', async () => {
  const cluster = new FakeCluster()
  const [ours, theirs] = [poolOf(cluster), poolOf(cluster, { 'ringfence.dev/server': 'two' })]
  await theirs.take(plan(64), 'image')
  await expect.poll(() => cluster.pods.length).toBe(2)
  await ours.take(plan(65), 'image')
  await expect.poll(() => cluster.pods.length).toBe(4)
  await ours.close()
  expect(cluster.pods.map(({ metadata }) => metadata?.labels?.['ringfence.dev/server'])).toEqual([
    'two',
    'two',
  ])
  await theirs.close()
})
