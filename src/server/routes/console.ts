import { SandboxError } from '../../model/errors.ts'
import { isOperator, type Principal } from '../../supervisor/access/keys.ts'
import type { NewSession } from '../../supervisor/access/sessions.ts'
import { assertOwnPage, cookieIn, sessionCookie } from '../console-auth.ts'
import { ConsoleStream } from '../console-stream.ts'
import type { ServerParts } from '../parts.ts'
import { type Call, type Route, route } from '../route.ts'
import { linkShape, positionQuery, signInShape } from '../shapes.ts'
import { lastEventId, sse } from '../sse.ts'

/** People in a browser: signing in and out, and the one stream that their page lives on. */

const OBJECT = { type: 'object' } as const

/** What the page may show and offer. */
const whoJson = (parts: ServerParts, principal: Principal) => ({
  key_id: principal.keyId,
  tenant: principal.tenant,
  scopes: principal.scopes,
  operator: isOperator(principal),
  version: parts.settings.version,
  allow_interactive: parts.settings.allowInteractive(),
})

const isSecure = ({ parts, request }: Call): boolean =>
  parts.settings.tls || request.headers.get('x-forwarded-proto') === 'https'

function welcome(call: Call, { cookie, page, principal }: NewSession): Response {
  return Response.json(
    { page, ...whoJson(call.parts, principal) },
    {
      status: 201,
      headers: { 'set-cookie': sessionCookie(cookie, isSecure(call)), 'cache-control': 'no-store' },
    },
  )
}

export const consoleRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/console/session',
    summary: 'Sign in to the console with a one-time link or an API key; sets a cookie',
    scope: 'open',
    body: signInShape,
    maxBytes: 4096,
    answers: { 201: { description: 'signed in; `page` is the half that the page keeps', schema: OBJECT } },
    async handle(call) {
      const { parts, body, request, env } = call
      assertOwnPage(request.headers, request.method)
      const { link, key } = body
      if ((link === undefined) === (key === undefined))
        throw new SandboxError('invalid-input', 'give either `link` or `key`')
      parts.signIns.assert(env?.incoming?.socket?.remoteAddress ?? '')
      return welcome(
        call as Call,
        link === undefined ? await parts.sessions.byKey(key as string) : await parts.sessions.byLink(link),
      )
    },
  }),
  route({
    method: 'GET',
    path: '/v1/console/session',
    summary: 'Who is signed in',
    scope: 'read',
    answers: { 200: { description: 'what this session may do', schema: OBJECT } },
    handle: ({ parts, principal }) => Response.json(whoJson(parts, principal)),
  }),
  route({
    method: 'DELETE',
    path: '/v1/console/session',
    summary: 'Sign out',
    scope: 'read',
    answers: { 204: { description: 'signed out' } },
    async handle(call) {
      const cookie = cookieIn(call.request.headers)
      if (cookie !== undefined) await call.parts.sessions.end(cookie)
      const headers = { 'set-cookie': sessionCookie('', isSecure(call as Call)) }
      return new Response(null, { status: 204, headers })
    },
  }),
  route({
    method: 'POST',
    path: '/v1/console/links',
    summary: 'A one-time sign-in link to the console, for a key',
    scope: 'admin',
    body: linkShape,
    answers: { 201: { description: 'its secret, shown once', schema: OBJECT } },
    async handle({ parts, body }) {
      const link = await parts.sessions.newLink(body.key_id ?? (await parts.keys.consoleKey()))
      return Response.json({ link, path: `/console/#${link}` }, { status: 201 })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/console/events',
    summary: 'Everything that the console shows, as it changes',
    scope: 'read',
    query: positionQuery,
    answers: {
      200: {
        description:
          'events: hello, approvals, reviews, sandbox, gone, samples, record; `cut` with the reason of its end',
        type: 'text/event-stream',
      },
    },
    handle: (call) => {
      const after = lastEventId(call.request) ?? call.query.after
      return sse(call, (signal) => new ConsoleStream(call.parts, call.principal).events(after, signal))
    },
  }),
  route({
    method: 'GET',
    path: '/v1/doctor',
    summary: 'What this host can do, measured now, with what to do about the rest',
    scope: 'admin',
    answers: { 200: { description: 'as `ringfence doctor --json` says it', schema: OBJECT } },
    handle: async ({ parts }) => Response.json(await parts.doctor()),
  }),
  route({
    method: 'GET',
    path: '/v1/skills',
    summary: 'The inspected skills: what they ask for, and red flags',
    scope: 'admin',
    answers: { 200: { description: 'the skills', schema: OBJECT } },
    handle: async ({ parts }) => Response.json({ items: await parts.skills.list(), next: null }),
  }),
]
