import { describe, expect, test } from 'vitest'
import { type Build, BuildLog, Builds } from './builds.ts'

const build = (
  tenant: string,
  id: string,
  status: Build['status'] = 'ready',
  createdAt = Date.now(),
): Build => ({
  createdAt,
  id,
  tenant,
  templateId: 'tpl',
  tags: [],
  name: 'x',
  cpus: undefined,
  memoryMb: undefined,
  log: new BuildLog(),
  status,
})

describe('builds', () => {
  test('of one tenant do not evict builds of another', () => {
    const builds = new Builds()
    builds.add(build('red', 'first'))
    for (let n = 0; n < 100; n++) builds.add(build('blue', `b${n}`))
    expect(builds.get('red', 'first')).toBeDefined()
    expect(builds.get('blue', 'first')).toBeUndefined()
    expect(builds.get('blue', 'b99')).toBeDefined()
    expect(Array.from({ length: 100 }, (_, n) => builds.get('blue', `b${n}`)).filter(Boolean)).toHaveLength(
      20,
    )
  })

  test('that are running are never evicted', () => {
    const builds = new Builds()
    for (let n = 0; n < 20; n++) builds.add(build('red', `b${n}`, 'building'))
    expect(() => builds.add(build('red', 'more'))).toThrow(/already has 20 builds/)
    builds.add(build('blue', 'other'))
  })

  test('that were not started yet are evicted only after an hour', () => {
    const builds = new Builds()
    for (let n = 0; n < 20; n++) builds.add(build('red', `b${n}`, 'waiting'))
    expect(() => builds.add(build('red', 'more', 'waiting'))).toThrow(/already has 20 builds/)
    for (let n = 0; n < 20; n++) expect(builds.get('red', `b${n}`)).toBeDefined()
    const old = new Builds()
    for (let n = 0; n < 20; n++) old.add(build('red', `b${n}`, 'waiting', Date.now() - 3_700_000))
    old.add(build('red', 'more', 'waiting'))
    expect(old.get('red', 'b0')).toBeUndefined()
  })

  test('have a log of about one megabyte, which says that it is full', () => {
    const log = new BuildLog()
    for (let n = 0; n < 5000; n++) log.say('x'.repeat(100_000))
    expect(JSON.stringify(log.entries).length).toBeLessThan(1.2 * 1024 * 1024)
    expect(log.entries.at(-1)?.message).toContain('full')
    const lines = new BuildLog()
    for (let n = 0; n < 100_000; n++) lines.say('')
    expect(lines.entries.length).toBeLessThanOrEqual(10_001)
  })
})
