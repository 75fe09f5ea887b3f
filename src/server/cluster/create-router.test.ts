import type { IncomingMessage, ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import { expect, test } from 'vitest'
import { Metrics } from '../../supervisor/telemetry/metrics.ts'
import { CreateRouter, type CreateRouterParts } from './create-router.ts'
import type { Local } from './router.ts'

const facts = {
  ...{ backends: [], labels: {}, failures: 0, sandboxes: 9, cpus: 9, memoryMb: 999, diskMb: 999 },
  used: { sandboxes: 0, cpus: 0, memoryMb: 0, diskMb: 0 },
}
const nodeRow = (id: string) => ({ id, name: id, state: 'up', role: 'all', schedule: 'open', facts })

test('a volume whose node was removed a moment ago is unreachable', async () => {
  const parts = {
    node: { id: 'here', role: 'all', nodes: [nodeRow('here'), nodeRow('other')] },
    reservations: { needOf: () => ({ cpus: 1, memoryMb: 1, diskMb: 1 }) },
    facts: () => facts,
    principalOf: async () => ({ keyId: 'k', tenant: 't', scopes: ['create'] }),
    volumeOwner: async () => 'removed',
    templateOwner: async () => undefined,
    ...{ waiting: 1, waitMs: 0, metrics: new Metrics() },
  } as unknown as CreateRouterParts
  const body = JSON.stringify({ volumes: [{ name: 'v', target: '/data' }] })
  const request = Object.assign(Readable.from([Buffer.from(body)]), { headers: {}, rawHeaders: [] })
  const routed = new CreateRouter(parts).route(
    request as unknown as IncomingMessage,
    {} as ServerResponse,
    {} as Local,
  )
  await expect(routed).rejects.toMatchObject({
    code: 'unreachable',
    message: 'no node takes this sandbox: volume `v` is on node removed: that node does not run',
  })
})
