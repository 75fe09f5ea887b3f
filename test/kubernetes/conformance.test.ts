import { describe, expect, test } from 'vitest'
import { native } from '../../src/backends/native/backend.ts'
import { isFine, runSuite, runUses } from '../../src/prove/suite.ts'
import { makeWorld } from '../conformance/world.ts'
import { noFullCluster, testBackend } from './lab.ts'

const HOURS = 3_600_000

/** What an image of the tests may lack. */
const isAbsent = (said: string): boolean => /command not found|ModuleNotFoundError/.test(said)

describe.skipIf(noFullCluster())('every claimed guarantee holds against its attacks on a cluster', () => {
  test('kubernetes', { timeout: 2 * HOURS }, async () => {
    const world = await makeWorld()
    Object.assign(process.env, world.env)
    const backend = testBackend()
    try {
      const control = native({ ...process.env, ...world.env } as Record<string, string>)
      const rows = await runSuite(backend, control, world)
      expect(rows.filter((row) => !isFine(row))).toEqual([])
      expect(rows.filter((row) => row.verdict === 'held').length).toBeGreaterThanOrEqual(100)
      const uses = await runUses(backend, world)
      expect(uses.filter(({ ok, said }) => !ok && !isAbsent(said))).toEqual([])
    } finally {
      await backend.close()
      await world.close()
    }
  })
})
