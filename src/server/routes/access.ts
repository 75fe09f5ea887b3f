import { type Call, type Route, route } from '../route.ts'
import { keyShape, webhookShape } from '../shapes.ts'
import { pageOf } from '../views.ts'

/** Keys and webhooks: who may come in, and who is told. */

const OBJECT = { type: 'object' } as const

export const keyRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/keys',
    summary: 'Make a key; it is shown once',
    scope: 'admin',
    body: keyShape,
    answers: { 201: { description: 'the key', schema: OBJECT } },
    async handle({ parts, body }) {
      const { secret, key } = await parts.keys.create(body)
      return Response.json({ ...keyJson(key), key: secret }, { status: 201 })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/keys',
    summary: 'All keys, without their secrets',
    scope: 'admin',
    answers: { 200: { description: 'the keys', schema: pageOf(OBJECT) } },
    handle: async ({ parts }) => Response.json({ items: (await parts.keys.list()).map(keyJson), next: null }),
  }),
  route({
    method: 'DELETE',
    path: '/v1/keys/:id',
    summary: 'Revoke a key, at once',
    scope: 'admin',
    answers: { 204: { description: 'revoked' } },
    async handle({ parts, params }) {
      await parts.keys.revoke(params.id as string)
      return new Response(null, { status: 204 })
    },
  }),
]

type KeyInfo = Awaited<ReturnType<Call['parts']['keys']['list']>>[number]

const keyJson = (key: KeyInfo) => ({
  id: key.id,
  name: key.name,
  start: key.start,
  scopes: key.scopes,
  tenant: key.tenant,
  created_at: new Date(key.createdAt).toISOString(),
  revoked_at: key.revokedAt === null ? null : new Date(key.revokedAt).toISOString(),
})

export const webhookRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/webhooks',
    summary: 'Send records of the trail to an address, signed',
    scope: 'create',
    body: webhookShape,
    answers: { 201: { description: 'the webhook with its secret, shown once', schema: OBJECT } },
    async handle({ parts, principal, body }) {
      const row = await parts.webhooks.create(principal, { url: body.url, events: body.events ?? [] })
      return Response.json(
        { id: row.id, url: row.url, events: row.events, secret: row.secret },
        { status: 201 },
      )
    },
  }),
  route({
    method: 'GET',
    path: '/v1/webhooks',
    summary: 'The webhooks',
    scope: 'read',
    answers: { 200: { description: 'the webhooks', schema: pageOf(OBJECT) } },
    async handle({ parts, principal }) {
      const rows = await parts.webhooks.list(principal)
      const items = rows.map(({ id, url, events, failures }) => ({ id, url, events, failures }))
      return Response.json({ items, next: null })
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/webhooks/:id',
    summary: 'Remove a webhook',
    scope: 'create',
    answers: { 204: { description: 'gone' } },
    async handle({ parts, principal, params }) {
      await parts.webhooks.remove(principal, params.id as string)
      return new Response(null, { status: 204 })
    },
  }),
]
