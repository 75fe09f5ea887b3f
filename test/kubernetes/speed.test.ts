import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { describe, expect, test } from 'vitest'
import type { Backend } from '../../src/backends/backend.ts'
import { isRunning } from '../../src/backends/kubernetes/pod-state.ts'
import { planOf } from '../conformance/world.ts'
import { noFullCluster, ownPods, runningPod, testApi, testBackend, testSettings } from './lab.ts'

/** Figures, in turns on one machine. RINGFENCE_TEST_KUBECTL is a program that runs kubectl against the cluster. */
const kubectl = process.env.RINGFENCE_TEST_KUBECTL
const MINUTES = 60_000
const ROUNDS = 5
const EXECS = 20
const plan = () => planOf({ backend: 'kubernetes', waive: ['net.offline'] })

const median = (times: readonly number[]): number =>
  [...times].sort((a, b) => a - b)[Math.floor(times.length / 2)] ?? 0

async function timed(work: () => Promise<unknown>): Promise<number> {
  const began = performance.now()
  await work()
  return performance.now() - began
}

/** Create and first command; the time of the removal does not count. */
async function firstCommand(backend: Backend): Promise<number> {
  const began = performance.now()
  const sandbox = await backend.open(plan())
  await sandbox.exec({ argv: ['/bin/true'] })
  const took = performance.now() - began
  await sandbox.close()
  return took
}

describe.skipIf(noFullCluster())('speed', () => {
  test('starting a warm Pod, and its commands', { timeout: 15 * MINUTES }, async () => {
    const [cold, warm] = [testBackend(), testBackend({}, { ready: 2 })]
    const api = await testApi()
    await firstCommand(warm)
    const times = { cold: [] as number[], warm: [] as number[] }
    for (let round = 0; round < ROUNDS; round++) {
      times.cold.push(await firstCommand(cold))
      const isReady = async () => (await ownPods(api)).filter(isRunning).length
      await expect.poll(isReady, { timeout: MINUTES }).toBe(2)
      times.warm.push(await firstCommand(warm))
    }
    const [slow, quick] = [median(times.cold), median(times.warm)]
    process.stderr.write(`cold ${slow.toFixed(0)} ms, warm ${quick.toFixed(0)} ms\n`)
    await Promise.all([cold.close(), warm.close()])
    expect(quick / slow).toBeLessThan(0.1)
  })

  test.skipIf(kubectl === undefined)(
    'exec, compared with kubectl exec',
    { timeout: 5 * MINUTES },
    async () => {
      const backend = testBackend()
      const sandbox = await backend.open(plan())
      const { name } = await runningPod(await testApi())
      const target = ['-n', testSettings().namespace, 'exec', name, '-c', 'sandbox', '--', '/bin/true']
      const times = { ours: [] as number[], theirs: [] as number[] }
      for (let round = 0; round < EXECS; round++) {
        times.ours.push(await timed(() => sandbox.exec({ argv: ['/bin/true'] })))
        times.theirs.push(await timed(() => promisify(execFile)(kubectl ?? '', target)))
      }
      const [ours, theirs] = [median(times.ours), median(times.theirs)]
      process.stderr.write(`exec ${ours.toFixed(1)} ms, kubectl exec ${theirs.toFixed(1)} ms\n`)
      await sandbox.close()
      await backend.close()
      expect(ours / theirs).toBeLessThan(0.1)
    },
  )
})
