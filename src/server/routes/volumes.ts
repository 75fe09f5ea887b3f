import { type FileInfo, filePage, fileShape } from '../../model/api/files.ts'
import {
  copyVolumeShape,
  newVolumeShape,
  type VolumeInfo,
  volumePage,
  volumeShape,
} from '../../model/api/volumes.ts'
import type { Sandbox } from '../../supervisor/sandbox.ts'
import { insidePath, outsidePath } from '../../supervisor/volumes/volume-files.ts'
import type { VolumeRow } from '../../supervisor/volumes/volumes.ts'
import { bytesOf } from '../body.ts'
import type { ServerParts } from '../parts.ts'
import type { Call, Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { filesQuery, pathQuery, readQuery } from '../shapes.ts'
import { attachment, fileJson } from './files.ts'

/** Volumes and the files in them. */

async function volumeJson({ volumes, cluster }: ServerParts, row: VolumeRow): Promise<VolumeInfo> {
  const isHere = volumes.isHere(row)
  return {
    id: row.id,
    name: row.name,
    size_mb: row.sizeMb,
    used_bytes: isHere ? ((await volumes.usedBytes(row)) ?? null) : null,
    read_only: row.readOnly,
    sandboxes: isHere ? volumes.usersOf(row).map(({ id }) => id) : await volumes.usersElsewhere(row),
    created_at: new Date(row.createdAt).toISOString(),
    tenant: row.tenant,
    node: cluster?.node.nodes.find(({ id }) => id === row.instance)?.name ?? row.instance,
  }
}

/** Runs a file operation in the sandbox that serves the volume. */
async function within<T>(
  { parts, principal, params }: Call<'id'>,
  work: (sandbox: Sandbox, row: VolumeRow) => Promise<T>,
): Promise<T> {
  const row = await parts.volumes.get(principal.tenant, params.id)
  return parts.volumeFiles.use(principal, row, (sandbox) => work(sandbox, row))
}

const shown = (info: Parameters<typeof fileJson>[0]): FileInfo => ({
  ...fileJson(info),
  path: outsidePath(info.path),
})

const records: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/volumes',
    summary: 'Create a volume: a named directory that outlives sandboxes',
    scope: 'create',
    body: newVolumeShape,
    answers: { 201: { description: 'the volume', shape: volumeShape } },
    async handle({ parts, principal, body }) {
      const row = await parts.volumes.create(principal, { name: body.name, sizeMb: body.size_mb })
      return reply(201, await volumeJson(parts, row))
    },
  }),
  route({
    method: 'GET',
    path: '/v1/volumes',
    summary: 'List the volumes of this tenant, newest first',
    scope: 'read',
    answers: { 200: { description: 'all of them', shape: volumePage } },
    async handle({ parts, principal }) {
      const rows = await parts.volumes.list(principal.tenant)
      const items: VolumeInfo[] = []
      for (const row of rows) items.push(await volumeJson(parts, row))
      return reply(200, { items, next: null })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/volumes/:id',
    summary: 'Get a volume, by id or name',
    scope: 'read',
    answers: { 200: { description: 'the volume', shape: volumeShape } },
    handle: async ({ parts, principal, params }) =>
      reply(200, await volumeJson(parts, await parts.volumes.get(principal.tenant, params.id))),
  }),
  route({
    method: 'DELETE',
    path: '/v1/volumes/:id',
    summary: 'Delete a volume with everything in it; refused while a sandbox has it mounted',
    scope: 'create',
    answers: { 204: { description: 'deleted' } },
    async handle({ parts, principal, params }) {
      await parts.volumeFiles.remove(principal, params.id)
      return reply(204)
    },
  }),
  route({
    method: 'POST',
    path: '/v1/volumes/:id/copy',
    summary:
      'Copy a volume; with `read_only` the copy is a snapshot. Sandboxes that write to it stand still meanwhile',
    scope: 'create',
    body: copyVolumeShape,
    answers: { 201: { description: 'the new volume', shape: volumeShape } },
    async handle({ parts, principal, params, body }) {
      const from = await parts.volumes.get(principal.tenant, params.id)
      const asked = { name: body.name, readOnly: body.read_only ?? false }
      return reply(201, await volumeJson(parts, await parts.volumeFiles.copy(principal, from, asked)))
    },
  }),
]

const files: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/volumes/:id/files',
    summary: 'Read a file of a volume, as a stream',
    scope: 'read',
    query: readQuery,
    answers: { 200: { description: 'the bytes of the file', type: 'application/octet-stream' } },
    async handle({ parts, principal, params, query: { path, ...range } }) {
      const row = await parts.volumes.get(principal.tenant, params.id)
      return attachment(parts.volumeFiles.read(principal, row, path, range))
    },
  }),
  route({
    method: 'PUT',
    path: '/v1/volumes/:id/files',
    summary: 'Write a file of a volume from the body, as a stream',
    scope: 'exec',
    query: pathQuery,
    stream: true,
    answers: { 200: { description: 'the file', shape: fileShape } },
    handle: (call) =>
      within(call, async (sandbox, row) => {
        const path = insidePath(call.query.path)
        await call.parts.volumeFiles.write(row, sandbox, path, bytesOf(call.request.body))
        return reply(200, shown(await sandbox.files.stat(path)))
      }),
  }),
  route({
    method: 'DELETE',
    path: '/v1/volumes/:id/files',
    summary: 'Delete a file of a volume, or a directory with everything in it',
    scope: 'exec',
    query: pathQuery,
    answers: { 204: { description: 'deleted' } },
    handle: (call) =>
      within(call, async ({ files }) => {
        await files.remove(insidePath(call.query.path))
        return reply(204)
      }),
  }),
  route({
    method: 'GET',
    path: '/v1/volumes/:id/files/list',
    summary: 'List a directory of a volume',
    scope: 'read',
    query: filesQuery,
    answers: { 200: { description: 'the entries', shape: filePage } },
    handle: (call) =>
      within(call, async ({ files }) => {
        const found = await files.entries(insidePath(call.query.path), call.query.depth)
        return reply(200, { items: found.map(shown), next: null })
      }),
  }),
]

/** Routes of volumes. */
export const volumeRoutes: readonly Route[] = [...records, ...files]
