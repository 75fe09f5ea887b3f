import { createdKeyShape, type KeyInfo, keyPage } from '../../model/api/keys.ts'
import type { Call, Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { keyShape } from '../shapes.ts'

/** API keys. */

export const keyRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/keys',
    summary: 'Create a key',
    scope: 'admin',
    body: keyShape,
    answers: { 201: { description: 'the key with its secret, shown once', shape: createdKeyShape } },
    async handle({ parts, body }) {
      const { secret, key } = await parts.keys.create(body)
      return reply(201, { ...keyJson(key), key: secret })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/keys',
    summary: 'List all keys, without their secrets',
    scope: 'admin',
    answers: { 200: { description: 'the keys', shape: keyPage } },
    handle: async ({ parts }) => reply(200, { items: (await parts.keys.list()).map(keyJson), next: null }),
  }),
  route({
    method: 'DELETE',
    path: '/v1/keys/:id',
    summary: 'Revoke a key immediately',
    scope: 'admin',
    answers: { 204: { description: 'revoked' } },
    async handle({ parts, params }) {
      await parts.keys.revoke(params.id)
      return reply(204)
    },
  }),
]

type StoredKey = Awaited<ReturnType<Call['parts']['keys']['list']>>[number]

const keyJson = (key: StoredKey): KeyInfo => ({
  id: key.id,
  name: key.name,
  start: key.start,
  scopes: key.scopes,
  tenant: key.tenant,
  created_at: new Date(key.createdAt).toISOString(),
  revoked_at: key.revokedAt === null ? null : new Date(key.revokedAt).toISOString(),
})
