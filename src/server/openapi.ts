import { streamEndShape } from '../model/api/execs.ts'
import { problemShape } from '../model/api/problem.ts'
import type { JsonSchema } from '../model/shape.ts'
import type { Answer, Route } from './route.ts'

/** The description of every route, made from the shapes that parse the requests and type the answers. */
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
      schemas: { Problem: openSchema(problemShape.schema), Cut: openSchema(streamEndShape.schema) },
    },
  }
}

/** An answer may gain fields: clients must ignore those that they do not know. */
function openSchema(schema: JsonSchema): JsonSchema {
  const open = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(open)
    if (typeof value !== 'object' || value === null) return value
    const kept = Object.entries(value).filter(
      ([name, one]) => !(name === 'additionalProperties' && one === false),
    )
    return Object.fromEntries(kept.map(([name, one]) => [name, open(one)]))
  }
  return open(schema) as JsonSchema
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
        description: 'an error, with its reason',
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

function answerOf({ description, shape, type, events }: Answer): Record<string, unknown> {
  const content = {
    ...(shape && { 'application/json': { schema: openSchema(shape.schema) } }),
    ...(type && { [type]: events ? { 'x-events': eventSchemas(events) } : {} }),
  }
  return Object.keys(content).length > 0 ? { description, content } : { description }
}

/** OpenAPI has no words for the events of a stream: their data, by the name of the event. */
const eventSchemas = (events: NonNullable<Answer['events']>): Record<string, JsonSchema> =>
  Object.fromEntries(Object.entries(events).map(([name, { schema }]) => [name, openSchema(schema)]))
