import {
  createdSandboxShape,
  type SnapshotInfo,
  snapshotPage,
  snapshotShape,
} from '../../model/api/sandboxes.ts'
import type { Template } from '../../supervisor/snapshots/templates.ts'
import type { Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { forkShape, snapshotShape as takeShape } from '../shapes.ts'
import { createdJson } from '../views.ts'

/** Snapshots: the files of a sandbox's own directories at one moment. */

const MOST_SNAPSHOTS = 100

const snapshotJson = ({ id, name, sandboxId, backend, createdAt }: Template): SnapshotInfo => ({
  id,
  name,
  sandbox_id: sandboxId,
  backend,
  created_at: new Date(createdAt).toISOString(),
})

/** Routes of snapshots. */
export const snapshotRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/snapshot',
    summary: "Take a snapshot of the sandbox's own directories; its id is a `template` for new sandboxes",
    scope: 'create',
    body: takeShape,
    answers: {
      201: { description: 'the snapshot', shape: snapshotShape },
      501: { description: 'this backend does not support snapshots' },
    },
    handle: async ({ parts, principal, params, body }) =>
      reply(201, snapshotJson(await parts.snapshots.take(principal, params.id, body.name))),
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/fork',
    summary: 'Create a sandbox of the same spec with the same files; processes are not copied',
    scope: 'create',
    body: forkShape,
    answers: {
      201: { description: 'the new sandbox, ready', shape: createdSandboxShape },
      501: { description: 'this backend does not support snapshots' },
    },
    handle: async ({ parts, principal, params, body }) =>
      reply(201, createdJson(await parts.snapshots.fork(principal, params.id, body.timeout_ms))),
  }),
  route({
    method: 'GET',
    path: '/v1/snapshots',
    summary: 'List snapshots, newest first',
    scope: 'read',
    answers: { 200: { description: 'the latest hundred', shape: snapshotPage } },
    async handle({ parts, principal }) {
      const latest = await parts.snapshots.list(principal, MOST_SNAPSHOTS)
      return reply(200, { items: latest.map(snapshotJson), next: null })
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/snapshots/:id',
    summary: 'Delete a snapshot',
    scope: 'create',
    answers: { 204: { description: 'deleted' } },
    async handle({ parts, principal, params }) {
      await parts.snapshots.remove(principal, params.id)
      return reply(204)
    },
  }),
]
