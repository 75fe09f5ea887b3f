import { describe, expect, test } from 'vitest'
import { UntestedDriver } from './untested.ts'

describe.each(['firecracker', 'vz'] as const)('the driver %s', (name) => {
  test('reports what this host lacks and what to do, and starts nothing', async () => {
    const driver = new UntestedDriver(name)
    const probe = await driver.probe()
    expect(probe).toMatchObject({
      usable: false,
      reason: expect.stringContaining(name),
      fix: expect.any(String),
    })
    for (const start of [driver.boot, driver.bootTemplate, driver.clone])
      await expect(start()).rejects.toMatchObject({ code: 'backend-unavailable' })
  })
})
