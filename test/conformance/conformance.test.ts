import { describe, expect, test } from 'vitest'
import { isFine } from '../../src/prove/suite.ts'
import { canHaveRoot } from '../root/root-host.ts'
import { ORDINARY, type Report, suiteAs } from './as-user.ts'

const MINUTES = 60_000

function judge(report: Report, atLeast = 50): void {
  expect(report.rows.filter((row) => !isFine(row))).toEqual([])
  expect(report.uses.filter((use) => !use.ok)).toEqual([])
  expect(report.rows.filter((row) => row.verdict === 'held').length).toBeGreaterThan(atLeast)
}

const FULL = Boolean(process.env.RINGFENCE_FULL)
const isRoot = process.getuid?.() === 0

describe('every guarantee that bubblewrap claims holds against its attacks, and every attack succeeds without a sandbox', () => {
  test('as the user who runs the tests', { timeout: 5 * MINUTES }, async () =>
    judge(await suiteAs(undefined)),
  )

  test.runIf(canHaveRoot)('as root in a sandbox with a writable root', { timeout: 5 * MINUTES }, async () =>
    judge(await suiteAs(undefined, '--root', ...(FULL ? [] : ['--few', '2'])), FULL ? 50 : 20),
  )

  test.runIf(isRoot)('as an unprivileged user', { timeout: 5 * MINUTES }, async () =>
    judge(await suiteAs(ORDINARY, ...(FULL ? [] : ['--few', '3'])), FULL ? 50 : 30),
  )
})
