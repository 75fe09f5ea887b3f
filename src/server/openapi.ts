import { ERRORS } from '../model/errors.ts'
import type { JsonSchema } from '../model/shape.ts'
import { STREAM_ENDS } from '../model/stream-end.ts'
import type { Route } from './route.ts'

/** The description of every route, made from the very shapes that parse the requests. */
export function openApi(routes: readonly Route[], version: string): Record<string, unknown> {
  const paths: Record<string, Record<string, unknown>> = {}
  for (const route of routes) {
    const path = route.path.replace(/:(\w+)/g, '{$1}').replace(/\*$/, '{rest}')
    const methods =
      route.method === 'ALL' ? ['get', 'post', 'put', 'delete', 'patch'] : [route.method.toLowerCase()]
    for (const method of methods) {
      paths[path] ??= {}
      ;(paths[path] as Record<string, unknown>)[method] = operationOf(route, method)
    }
  }
  return {
    openapi: '3.1.0',
    info: { title: 'Ringfence', version, license: { name: 'Apache-2.0', identifier: 'Apache-2.0' } },
    paths,
    security: [{ bearer: [] }, { apiKey: [] }],
    components: {
      securitySchemes: {
        bearer: { type: 'http', scheme: 'bearer' },
        apiKey: { type: 'apiKey', in: 'header', name: 'X-API-KEY' },
      },
      schemas: { Problem: PROBLEM, Cut: CUT },
    },
  }
}

const PROBLEM: JsonSchema = {
  type: 'object',
  required: ['code', 'message', 'request_id'],
  properties: {
    code: { enum: Object.keys(ERRORS) },
    message: { type: 'string' },
    hint: { type: 'string' },
    reasons: { type: 'array', items: { type: 'string' } },
    request_id: { type: 'string' },
  },
}

/** The event `cut` of streams, and the field `cut` of a command whose sandbox ended around it. */
const CUT: JsonSchema = {
  type: 'object',
  required: ['reason', 'message'],
  properties: { reason: { enum: Object.keys(STREAM_ENDS) }, message: { type: 'string' } },
}

function operationOf(route: Route, method: string): Record<string, unknown> {
  return {
    operationId: `${method}_${route.path
      .replace(/^\//, '')
      .replace(/[^\w]+/g, '_')
      .replace(/_$/, '')}`,
    summary: route.summary,
    ...(route.scope === 'open' ? { security: [] } : { 'x-scope': route.scope }),
    parameters: [...pathParameters(route), ...queryParameters(route)],
    ...bodyOf(route),
    responses: {
      ...Object.fromEntries(
        Object.entries(route.answers).map(([status, answer]) => [status, answerOf(answer)]),
      ),
      default: {
        description: 'refused, with the reason',
        content: { 'application/json': { schema: { $ref: '#/components/schemas/Problem' } } },
      },
    },
  }
}

function pathParameters({ path }: Route): unknown[] {
  const names = [...path.matchAll(/:(\w+)/g)].map(([, name]) => name as string)
  return [...names, ...(path.endsWith('*') ? ['rest'] : [])].map((name) => ({
    name,
    in: 'path',
    required: true,
    schema: { type: 'string' },
  }))
}

function queryParameters({ query }: Route): unknown[] {
  const schema = query?.schema as { properties?: Record<string, unknown>; required?: string[] } | undefined
  return Object.entries(schema?.properties ?? {}).map(([name, one]) => ({
    name,
    in: 'query',
    required: schema?.required?.includes(name) ?? false,
    schema: one,
  }))
}

function bodyOf({ body, stream }: Route): Record<string, unknown> {
  if (stream)
    return {
      requestBody: {
        content: { 'application/octet-stream': { schema: { type: 'string', format: 'binary' } } },
      },
    }
  if (!body) return {}
  return { requestBody: { content: { 'application/json': { schema: body.schema } } } }
}

function answerOf({ description, schema, type }: Route['answers'][number]): Record<string, unknown> {
  if (schema) return { description, content: { 'application/json': { schema } } }
  return type ? { description, content: { [type]: {} } } : { description }
}
