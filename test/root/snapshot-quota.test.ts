import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { openStore } from '../../src/store/open.ts'
import { Templates } from '../../src/supervisor/snapshots/templates.ts'
import { canHaveRoot, type RootHost, rootHost, sh } from './root-host.ts'

let host: RootHost
beforeAll(async () => {
  host = await rootHost()
})
afterAll(() => host.close())

describe.runIf(canHaveRoot)('snapshots of one tenant', () => {
  test('taken at the same time share its quota', async () => {
    const dir = join(host.base, 'templates')
    mkdirSync(dir)
    const store = await openStore({ stateDir: dir, databaseUrl: '' })
    const templates = new Templates(store, dir, { archiveBytes: 70 * 1024 * 1024 })
    await using one = await host.open()
    await using two = await host.open()
    for (const sandbox of [one, two]) await sh(sandbox, 'head -c 40M /dev/urandom > /opt/big; sync', 'root')
    const keep = (sandbox: typeof one, id: string, tenant = 'ada') =>
      templates.keep(sandbox, [], {
        ...{ id, tenant, kind: 'snapshot' as const, name: null, sandboxId: sandbox.id },
        ...{ createdAt: Date.now(), data: {} },
      })
    const results = await Promise.allSettled([keep(one, 'snp_one'), keep(two, 'snp_two')])
    expect(results.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected'])
    await expect(keep(two, 'snp_three')).rejects.toThrow('quota')
    await expect(keep(two, 'snp_four', 'bob')).resolves.toBeDefined()
    await store.close()
  })

  test('count on every node of a cluster', async () => {
    const base = join(host.base, 'nodes')
    mkdirSync(base)
    const store = await openStore({ stateDir: base, databaseUrl: '' })
    const [here, there] = ['here', 'there'].map((node) => {
      const shared = { node, fetch: () => Promise.reject(new Error('not needed')), copy: async () => [] }
      return new Templates(store, join(base, node), { archiveBytes: 70 * 1024 * 1024, shared })
    }) as [Templates, Templates]
    await using sandbox = await host.open({ limits: { diskMb: 128 } })
    await sh(sandbox, 'head -c 40M /dev/urandom > /opt/big; sync', 'root')
    const keep = (templates: Templates, id: string) =>
      templates.keep(sandbox, [], {
        ...{ id, tenant: 'ada', kind: 'snapshot' as const, name: null, sandboxId: sandbox.id },
        ...{ createdAt: Date.now(), data: {} },
      })
    await keep(here, 'snp_here')
    await expect(keep(there, 'snp_there')).rejects.toThrow('quota')
    await store.close()
  })
})
