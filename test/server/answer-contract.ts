import { afterEach, expect } from 'vitest'
import { problemShape } from '../../src/model/api/problem.ts'
import { type Mount, ROUTES } from '../../src/server/app.ts'
import type { Route } from '../../src/server/route.ts'

/**
 * Checks every answer of a test server: each JSON answer must match the shape that its route declares, without a
 * field that the shape does not name. An answer that does not match fails the test in which it was sent.
 */

const broken: string[] = []
/** The routes with an answer that was checked in this test file, as `GET /v1/keys 200`. */
export const checkedAnswers = new Set<string>()

afterEach(() => {
  expect(broken.splice(0), 'answers that differ from what their routes declare').toEqual([])
})

/** The row that serves a request. */
function routeOf(method: string, path: string): Route | undefined {
  const fits = ROUTES.filter(
    (route) =>
      route.method === method &&
      new RegExp(`^${route.path.replace(/:\w+/g, '[^/]+').replace(/\*$/, '.*')}$`).test(path),
  )
  // A fixed path comes before one with parameters, as in the router.
  return fits.toSorted((a, b) => a.path.split(':').length - b.path.split(':').length)[0]
}

/** Mounted before the routes of a test's server, so that it sees the answers to every client. */
export const answerContract: Mount = Object.assign(
  ((app) => {
    app.use('*', async (context, next) => {
      await next()
      const { method, path } = context.req
      const route = routeOf(method, path)
      const type = context.res.headers.get('content-type') ?? ''
      if (route && type.startsWith('application/json'))
        checkJson(route, context.res.status, await context.res.clone().json())
    })
  }) satisfies Mount,
  { early: true },
)

function checkJson(route: Route, status: number, json: unknown): void {
  const shape = route.answers[status]?.shape ?? (status >= 400 ? problemShape : undefined)
  const name = `${route.method} ${route.path} ${status}`
  checkedAnswers.add(name)
  attempt(name, () => {
    if (!shape) throw new Error('the route declares no JSON for this status')
    shape.parse(json, '')
  })
}

/** Checks the events of a stream that was read to its end; an id may stand before each. */
export function checkEvents(method: string, path: string, text: string): void {
  const route = routeOf(method, path.replace(/\?.*/, ''))
  const declared = route?.answers[200]?.events
  if (!route || !declared) return
  for (const [, event, data] of text.matchAll(/^event: (.*)\ndata: (.*)$/gm))
    attempt(`${method} ${route.path} event ${event}`, () => {
      const shape = declared[event as string]
      if (!shape) throw new Error('the route declares no such event')
      checkedAnswers.add(`${method} ${route.path} event ${event}`)
      shape.parse(JSON.parse(data as string), '')
    })
}

function attempt(name: string, check: () => void): void {
  try {
    check()
  } catch (error) {
    broken.push(`${name}: ${(error as Error).message}`)
  }
}
