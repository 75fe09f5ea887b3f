import { existsSync } from 'node:fs'
import { expect, it } from 'vitest'
import { fuzz } from './fuzz-shell.ts'

// A short run of `npm run fuzz:shell`; the seed changes every day and is part of the report.
it.skipIf(!existsSync('/usr/bin/bwrap'))('bash starts no program that our parser did not find', () => {
  const report = fuzz(300, Math.floor(Date.now() / 86_400_000))
  expect(report.findings, `seed ${report.seed}`).toEqual([])
  expect(report.lines).toBe(300)
  // A jail that runs nothing would find nothing.
  expect(report.reached).toBeGreaterThan(300)
})
