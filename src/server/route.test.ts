import { expect, test } from 'vitest'
import { string } from '../model/api/fields.ts'
import { object, optional } from '../model/shape.ts'
import { openApi } from './openapi.ts'
import { reply, responseOf, route } from './route.ts'

/** What must not compile is marked with `@ts-expect-error`: `tsc` fails where it finds no error. */

const base = { method: 'GET', path: '/v1/things/:id/parts/:part', summary: '', scope: 'open' } as const
const thing = object({ id: string(), note: optional(string()) })
const answers = { 200: { description: 'the thing', shape: thing }, 204: { description: 'none' } } as const

test('parameters have the names in the path', () => {
  route({ ...base, answers, handle: ({ params }) => reply(200, { id: params.id, note: params.part }) })
  // @ts-expect-error: `part`
  route({ ...base, answers, handle: ({ params }) => reply(200, { id: params.parts }) })
  route({
    ...base,
    path: '/v1/things',
    answers,
    // @ts-expect-error: no parameter at all
    handle: ({ params }) => reply(200, { id: params.id }),
  })
})

test('a handler returns one of the declared answers', () => {
  route({ ...base, answers, handle: () => reply(204) })
  route({ ...base, answers, handle: async () => reply(200, { id: 'a' }) })
  // @ts-expect-error: a field is missing
  route({ ...base, answers, handle: async () => reply(200, { note: 'a' }) })
  // @ts-expect-error: a field has another type
  route({ ...base, answers, handle: () => reply(200, { id: 1 }) })
  // @ts-expect-error: this status is not declared
  route({ ...base, answers, handle: () => reply(201, { id: 'a' }) })
  // @ts-expect-error: this status has no content
  route({ ...base, answers, handle: () => reply(204, { id: 'a' }) })
  // @ts-expect-error: JSON that no shape describes
  route({ ...base, answers, handle: () => Response.json({ id: 'a' }) })
  const stream = { 200: { description: 'bytes', type: 'application/octet-stream' } } as const
  route({ ...base, answers: stream, handle: () => new Response('bytes') })
})

test('an answer becomes a response', async () => {
  const created = responseOf(reply(201, { id: 'a' }, { 'cache-control': 'no-store' }))
  expect([created.status, created.headers.get('cache-control')]).toEqual([201, 'no-store'])
  expect(await created.json()).toEqual({ id: 'a' })
  const empty = responseOf(reply(204))
  expect([empty.status, await empty.text()]).toEqual([204, ''])
})

test('OpenAPI describes an answer by its shape, and allows additional fields', () => {
  const row = route({ ...base, answers, handle: () => reply(204) })
  const { paths } = openApi([row], '0') as { paths: Record<string, Record<string, { responses: unknown }>> }
  expect(paths['/v1/things/{id}/parts/{part}']?.get?.responses).toMatchObject({
    200: {
      content: {
        'application/json': {
          schema: {
            type: 'object',
            properties: { id: { type: 'string' }, note: { type: 'string' } },
            required: ['id'],
          },
        },
      },
    },
    204: { description: 'none' },
  })
  expect(JSON.stringify(paths)).not.toContain('additionalProperties')
})
