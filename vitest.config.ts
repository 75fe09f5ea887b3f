import { defineConfig } from 'vitest/config'
import { BaseSequencer, type TestSpecification } from 'vitest/node'

/** Files that take minutes. The largest files run first, and these are small: they would run last, alone. */
const SLOW = [
  'test/conformance/conformance.test.ts',
  'test/backends/microvm.test.ts',
  // Waits for ten minutes with full counts, beside the others.
  'test/adapters/endurance.test.ts',
]

class SlowFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const isSlow = ({ moduleId }: TestSpecification): boolean => SLOW.some((name) => moduleId.endsWith(name))
    const sorted = await super.sort(files)
    return [...sorted.filter(isSlow), ...sorted.filter((file) => !isSlow(file))]
  }
}

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    sequence: { sequencer: SlowFirst },
    // Two workers: the real sandboxes of the conformance tests share the machine with them.
    maxWorkers: 2,
  },
})
