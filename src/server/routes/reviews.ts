import {
  appliedShape,
  type Change,
  changeDiffShape,
  changesShape,
  reviewPage,
} from '../../model/api/reviews.ts'
import type { SeenChange } from '../../supervisor/snapshots/reviews.ts'
import type { Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { applyShape, noBody, pathQuery } from '../shapes.ts'
import { waitingJson } from '../views.ts'

/**
 * The changes of reviewed sandboxes. SECURITY: reading them needs `read`; applying or dropping them needs `admin`, as
 * an approval does: the agent that made the changes must not be the one that applies them. Paths are those inside the
 * sandbox, never the host's.
 */

const changeJson = ({ inside, change, kind, mode, size, binary, target, version }: SeenChange): Change => ({
  path: inside,
  change,
  kind,
  mode,
  size,
  binary,
  ...(target === undefined ? {} : { target }),
  version,
})

/** Routes of reviewed changes. */
export const reviewRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/reviews',
    summary: 'List ended sandboxes with changes that are not applied, latest first',
    scope: 'read',
    answers: { 200: { description: 'the first 200, and the total', shape: reviewPage } },
    async handle({ parts, principal }) {
      const { items, total } = await parts.reviews.waiting(principal)
      return reply(200, { items: items.map(waitingJson), total, next: null })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/:id/review',
    summary: 'List the changes of a reviewed sandbox, also after its end',
    scope: 'read',
    sandboxToken: true,
    answers: {
      200: { description: 'the changes', shape: changesShape },
      409: { description: 'the sandbox was not created with `review`' },
    },
    async handle({ parts, principal, params }) {
      const { open, total, items } = await parts.reviews.list(principal, params.id)
      return reply(200, { open, total, items: items.map(changeJson), next: null })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/:id/review/diff',
    summary: 'Get one change with the text before and after',
    scope: 'read',
    sandboxToken: true,
    query: pathQuery,
    answers: { 200: { description: 'the change', shape: changeDiffShape } },
    async handle({ parts, principal, params, query }) {
      const { change, before, after } = await parts.reviews.diff(principal, params.id, query.path)
      return reply(200, { ...changeJson(change), before: before ?? null, after: after ?? null })
    },
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/review/apply',
    summary: 'Apply changes to the host: all, some paths, or exactly the given versions',
    scope: 'admin',
    body: applyShape,
    answers: { 200: { description: 'what was applied and what was refused', shape: appliedShape } },
    handle: async ({ parts, principal, params, body }) =>
      reply(200, await parts.reviews.apply(principal, params.id, body)),
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/review/drop',
    summary: 'Discard the changes of an ended sandbox',
    scope: 'admin',
    body: noBody,
    answers: { 204: { description: 'discarded' }, 409: { description: 'the sandbox still runs' } },
    async handle({ parts, principal, params }) {
      await parts.reviews.drop(principal, params.id)
      return reply(204)
    },
  }),
]
