import { chmodSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Backend } from '../../src/backends/backend.ts'
import { bubblewrap } from '../../src/backends/bubblewrap/backend.ts'
import { docker } from '../../src/backends/docker/backend.ts'
import { gvisor } from '../../src/backends/gvisor/backend.ts'
import { ownEpoch } from '../../src/host/process/orphans.ts'
import { skipped, startDocker, type TestEngine, testImages, testState } from '../conformance/engines.ts'
import { packageRoot, planOf } from '../conformance/world.ts'
import { BrokerKit } from './broker-kit.ts'

/** The front itself, inside a sandbox whose plan shows the socket: the state directory here is not the plan's own, so nothing hides it. */

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

/** Whether the broker answers a front that runs there. */
async function isServedIn(backend: Backend, waive: readonly string[] = []): Promise<boolean> {
  const sandbox = await backend.open(planOf({ workspace: kit.base, waive }))
  try {
    const command = {
      argv: [kit.front, 'check', 'command', 'true'] as const,
      env: kit.env,
      cwd: kit.workspace,
    }
    const { outcome } = await kit.withoutNodeAsync(() => sandbox.exec(command))
    return outcome.kind === 'exited' && outcome.code === 0
  } finally {
    await sandbox.close()
  }
}

test('the control: without a sandbox it is served', () => {
  expect(kit.isServed()).toBe(true)
})

test('bubblewrap', async () => {
  expect(await isServedIn(bubblewrap({ agent, probePlan }))).toBe(false)
})

describe.runIf(FULL)('containers', () => {
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

  test.skipIf(skipped('gvisor'))('gvisor', { timeout: 5 * MINUTE }, async () => {
    expect(await isServedIn(gvisor(parts), ['fs.protect'])).toBe(false)
  })
})
