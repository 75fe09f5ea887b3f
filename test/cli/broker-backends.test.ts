import { chmodSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Backend } from '../../src/backends/backend.ts'
import { bubblewrap } from '../../src/backends/bubblewrap/backend.ts'
import { docker } from '../../src/backends/docker/backend.ts'
import { gvisor } from '../../src/backends/gvisor/backend.ts'
import { ownEpoch } from '../../src/host/process/orphans.ts'
import { machineImages, machines, whyNoMachine } from '../backends/microvm-parts.ts'
import { skipped, startDocker, type TestEngine, testImages, testState } from '../conformance/engines.ts'
import { packageRoot, planOf } from '../conformance/world.ts'
import { BrokerKit } from './broker-kit.ts'

/** The front in a sandbox that can see the broker socket: this state directory is not the sandbox's own, so it is not hidden. */

const FULL = process.env.RINGFENCE_FULL === '1'
const MINUTE = 60_000
const kit = new BrokerKit()
const agent = join(packageRoot(), 'dist', 'guest', 'ringfence-agent')
const probePlan = () => planOf({ limits: { wallMs: 10_000 } })
beforeAll(async () => {
  chmodSync(kit.base, 0o755)
  await kit.start()
})
afterAll(() => kit.remove())

/** Whether the broker answers a front in that sandbox. Node is broken before, because a virtual machine copies files when it is opened. */
const isServedIn = (backend: Backend, waive: readonly string[] = []): Promise<boolean> =>
  kit.withoutNodeAsync(async () => {
    const sandbox = await backend.open(planOf({ workspace: kit.base, waive }))
    try {
      const argv = [kit.front, 'check', 'command', 'true'] as const
      const { outcome } = await sandbox.exec({ argv, env: kit.env, cwd: kit.workspace })
      // The front ran: without a broker it starts Node, which is broken or missing there.
      if (outcome.kind !== 'exited' || ![0, 99, 127].includes(outcome.code))
        throw new Error(JSON.stringify(outcome))
      return outcome.code === 0
    } finally {
      await sandbox.close()
    }
  })

test('control: a caller outside a sandbox is served', () => {
  expect(kit.isServed()).toBe(true)
})

test('a caller in bubblewrap is not served', async () => {
  expect(await isServedIn(bubblewrap({ agent, probePlan }))).toBe(false)
})

describe.runIf(FULL)('a caller in a container or virtual machine is not served', () => {
  const parts = {
    agent,
    probePlan,
    images: testImages(),
    stateDir: testState(),
    owner: 'test',
    epoch: ownEpoch(),
  }
  let engine: TestEngine | undefined
  afterAll(() => engine?.close())

  test.skipIf(skipped('docker'))('docker', { timeout: 5 * MINUTE }, async () => {
    engine = await startDocker()
    expect(await isServedIn(docker({ ...parts, sockets: [engine.socket] }))).toBe(false)
  })

  test.skipIf(whyNoMachine() !== undefined)('microvm', { timeout: 10 * MINUTE }, async () => {
    await machineImages()
    const backend = machines()
    try {
      expect(await isServedIn(backend, ['fs.protect'])).toBe(false)
    } finally {
      await backend.close()
    }
  })

  test.skipIf(skipped('gvisor'))('gvisor', { timeout: 5 * MINUTE }, async () => {
    expect(await isServedIn(gvisor(parts), ['fs.protect'])).toBe(false)
  })
})
