import { type NodeInfo, nodePage, nodeShape } from '../../model/api/nodes.ts'
import { SandboxError } from '../../model/errors.ts'
import type { ClusterParts, ServerParts } from '../parts.ts'
import type { Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { noBody } from '../shapes.ts'

/** The nodes of a cluster. */

type Row = Awaited<ReturnType<ClusterParts['admin']['find']>>

const nodeJson = (row: Row, self: string, volumes: ReadonlyMap<string, number>): NodeInfo => {
  const { facts } = row
  return {
    id: row.id,
    name: row.name,
    role: row.role,
    state: row.state,
    schedule: row.schedule,
    epoch: row.epoch,
    version: row.version,
    url: row.url,
    labels: facts.labels,
    backends: facts.backends,
    capacity: {
      cpus: facts.cpus,
      memory_mb: facts.memoryMb,
      disk_mb: facts.diskMb,
      sandboxes: facts.sandboxes,
    },
    used: {
      cpus: facts.used.cpus,
      memory_mb: facts.used.memoryMb,
      disk_mb: facts.used.diskMb,
      sandboxes: facts.used.sandboxes,
    },
    failing: facts.failures > 0,
    lease_left_ms: row.state === 'up' ? row.leftMs : null,
    volumes: volumes.get(row.id) ?? 0,
    staying: facts.staying ?? [],
    joined_at: new Date(row.joinedAt).toISOString(),
    self: row.id === self,
  }
}

function clusterOf({ cluster }: ServerParts): ClusterParts {
  if (cluster) return cluster
  throw new SandboxError('unsupported', 'this server is not a node of a cluster', {
    hint: 'see docs/cluster.md',
  })
}

const ONE = { 200: { description: 'the node', shape: nodeShape } } as const
const SUMMARIES = {
  cordon: 'Let a node take no new sandboxes',
  drain:
    'Let a node take no new sandboxes, and move those that are paused without memory or may restart, and unused volumes; `staying` says why the rest stays',
  uncordon: 'Let a node take new sandboxes again',
} as const
const SCHEDULES = { cordon: 'cordoned', drain: 'draining', uncordon: 'open' } as const

/** Routes of nodes. */
export const nodeRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/nodes',
    summary: 'List the nodes of the cluster; empty for a server that is alone',
    scope: 'admin',
    answers: { 200: { description: 'all nodes', shape: nodePage } },
    async handle({ parts }) {
      const { cluster } = parts
      if (!cluster) return reply(200, { items: [], next: null })
      const [rows, volumes] = await Promise.all([cluster.admin.list(), cluster.admin.volumes()])
      return reply(200, { items: rows.map((row) => nodeJson(row, cluster.node.id, volumes)), next: null })
    },
  }),
  ...(['cordon', 'drain', 'uncordon'] as const).map((verb) =>
    route({
      method: 'POST',
      path: `/v1/nodes/:id/${verb}` as const,
      summary: SUMMARIES[verb],
      scope: 'admin',
      body: noBody,
      answers: ONE,
      async handle({ parts, params }) {
        const { admin, node } = clusterOf(parts)
        const row = await admin.schedule(params.id, SCHEDULES[verb])
        return reply(200, nodeJson(row, node.id, await admin.volumes()))
      },
    }),
  ),
  route({
    method: 'DELETE',
    path: '/v1/nodes/:id',
    summary: 'Forget a node that does not run any more',
    scope: 'admin',
    answers: ONE,
    async handle({ parts, params }) {
      const { admin, node } = clusterOf(parts)
      const row = await admin.remove(params.id)
      return reply(200, nodeJson(row, node.id, await admin.volumes()))
    },
  }),
]
