import { defineConfig } from 'vitest/config'

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // Two workers: the real sandboxes of the conformance tests share the machine with them.
    maxWorkers: 2,
  },
})
