import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { gvisor } from '../../src/backends/gvisor/backend.ts'
import { testImages, whyNot } from '../conformance/engines.ts'
import { packageRoot, planOf } from '../conformance/world.ts'

const agent = join(packageRoot(), 'dist', 'guest', 'ringfence-agent')
const base = mkdtempSync(join(tmpdir(), 'rf-gvisor-kill-'))
const probePlan = () => planOf({ limits: { wallMs: 10_000 } })
const backend = gvisor({ agent, probePlan, images: testImages(), stateDir: base })
afterAll(() => rmSync(base, { recursive: true, force: true }))

describe.skipIf(whyNot('gvisor') !== undefined)('a command in gVisor', () => {
  test('that is killed before it read its start message does not block the agent', async () => {
    const sandbox = await backend.open(planOf({ backend: 'gvisor', waive: ['fs.protect'] }))
    try {
      for (let round = 0; round < 100; round++) {
        const stop = new AbortController()
        let permit = () => {}
        const starting = sandbox.start(
          { argv: ['sleep', '60'] },
          { permit: new Promise<void>((resolve) => (permit = resolve)), signal: stop.signal },
        )
        await new Promise((resolve) => setTimeout(resolve, round % 10))
        permit()
        await Promise.resolve()
        stop.abort()
        await starting.then(({ result }) => result).catch(() => {})
      }
      const { stdout } = await sandbox.exec({ argv: ['echo', 'on'] })
      expect(Buffer.from(stdout).toString()).toBe('on\n')
    } finally {
      await sandbox.close()
    }
  })
})
