import { createdWebhookShape, webhookPage } from '../../model/api/webhooks.ts'
import type { Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { webhookShape } from '../shapes.ts'

/** Webhooks: addresses that get records of the audit log. */

export const webhookRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/webhooks',
    summary: 'Send records of the audit log to an address, signed',
    scope: 'create',
    body: webhookShape,
    answers: {
      201: { description: 'the webhook with its secret, shown once', shape: createdWebhookShape },
    },
    async handle({ parts, principal, body }) {
      return reply(201, await parts.webhooks.create(principal, { url: body.url, events: body.events ?? [] }))
    },
  }),
  route({
    method: 'GET',
    path: '/v1/webhooks',
    summary: 'List webhooks',
    scope: 'read',
    answers: { 200: { description: 'the webhooks', shape: webhookPage } },
    async handle({ parts, principal }) {
      const rows = await parts.webhooks.list(principal)
      const items = rows.map(({ id, url, events, failures }) => ({ id, url, events, failures }))
      return reply(200, { items, next: null })
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/webhooks/:id',
    summary: 'Delete a webhook',
    scope: 'create',
    answers: { 204: { description: 'deleted' } },
    async handle({ parts, principal, params }) {
      await parts.webhooks.remove(principal, params.id)
      return reply(204)
    },
  }),
]
