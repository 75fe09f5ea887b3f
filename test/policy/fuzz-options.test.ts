import { expect, it } from 'vitest'
import { fuzzOptions } from './fuzz-options.ts'
import { canCompare } from './option-forms.ts'

// A short run of `npm run fuzz:options`; the seed changes every day and is part of the report.
it.skipIf(!canCompare())(
  'no program on the host has an option effect that its option table lacks',
  () => {
    const total = process.env.RINGFENCE_FULL ? 30_000 : 150
    const report = fuzzOptions(total, Math.floor(Date.now() / 86_400_000))
    expect(report.findings, `seed ${report.seed}`).toEqual([])
    expect(report.forms).toBe(total)
    // A jail that runs nothing would find nothing.
    expect(report.ran).toBeGreaterThan(total / 10)
  },
  process.env.RINGFENCE_FULL ? 3_600_000 : 60_000,
)
