import type { SeenChange, WaitingReview } from '../../supervisor/snapshots/reviews.ts'
import { type Route, route } from '../route.ts'
import { applyShape, noBody, pathQuery } from '../shapes.ts'
import { pageOf, sandboxJson, sandboxSchema } from '../views.ts'

/**
 * What a reviewed sandbox changed. SECURITY: looking needs `read`; the word itself needs `admin`, like an approval: whoever
 * made the changes must not be the one who lets them out. Paths are the sandbox's own, never the host's.
 */

const CHANGE = {
  type: 'object',
  required: ['path', 'change', 'kind', 'mode', 'size', 'binary', 'version'],
  properties: {
    path: { type: 'string' },
    change: { enum: ['added', 'changed', 'deleted', 'mode'] },
    kind: { enum: ['file', 'dir', 'link', 'other'] },
    mode: { type: 'integer' },
    size: { type: 'integer' },
    binary: { type: 'boolean' },
    target: { type: 'string' },
    version: { type: 'string', description: 'names exactly this change; `apply` takes it' },
  },
}
const APPLIED = {
  type: 'object',
  required: ['applied', 'refused', 'waiting'],
  properties: {
    applied: { type: 'integer' },
    refused: { type: 'array', items: { type: 'object' } },
    waiting: { type: 'integer' },
  },
}

const WAITING = {
  ...sandboxSchema,
  properties: {
    ...sandboxSchema.properties,
    changes: {
      type: ['integer', 'null'],
      description: 'how many wait; null where its end came too suddenly to count them',
    },
  },
}

/** A sandbox that has ended, with how many of its changes wait. */
export const waitingJson = ({ row, changes }: WaitingReview) => ({ ...sandboxJson({ row }), changes })

const changeJson = ({ inside, change, kind, mode, size, binary, target, version }: SeenChange) => ({
  path: inside,
  change,
  kind,
  mode,
  size,
  binary,
  ...(target === undefined ? {} : { target }),
  version,
})

export const reviewRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/reviews',
    summary: 'The sandboxes that have ended and whose changes wait, latest first',
    scope: 'read',
    answers: { 200: { description: 'the first 200, and how many there are', schema: pageOf(WAITING) } },
    async handle({ parts, principal }) {
      const { items, total } = await parts.reviews.waiting(principal)
      return Response.json({ items: items.map(waitingJson), total, next: null })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/:id/review',
    summary: 'What it changed behind the overlay, also after its end',
    scope: 'read',
    sandboxToken: true,
    answers: {
      200: { description: 'the changes', schema: pageOf(CHANGE) },
      409: { description: 'it was not created with `review`' },
    },
    async handle({ parts, principal, params }) {
      const { open, total, items } = await parts.reviews.list(principal, params.id as string)
      return Response.json({ open, total, items: items.map(changeJson), next: null })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/:id/review/diff',
    summary: 'One change: the text before and after',
    scope: 'read',
    sandboxToken: true,
    query: pathQuery,
    answers: { 200: { description: 'the change', schema: CHANGE } },
    async handle({ parts, principal, params, query }) {
      const { change, before, after } = await parts.reviews.diff(principal, params.id as string, query.path)
      return Response.json({ ...changeJson(change), before: before ?? null, after: after ?? null })
    },
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/review/apply',
    summary: 'Make changes real: all, some, or exactly the versions that were seen',
    scope: 'admin',
    body: applyShape,
    answers: { 200: { description: 'what became of them', schema: APPLIED } },
    handle: async ({ parts, principal, params, body }) =>
      Response.json(await parts.reviews.apply(principal, params.id as string, body)),
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/review/drop',
    summary: 'Forget the changes of a sandbox that has ended',
    scope: 'admin',
    body: noBody,
    answers: { 204: { description: 'dropped' }, 409: { description: 'it still runs' } },
    async handle({ parts, principal, params }) {
      await parts.reviews.drop(principal, params.id as string)
      return new Response(null, { status: 204 })
    },
  }),
]
