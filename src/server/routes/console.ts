import {
  consoleEvents,
  linkShape,
  type Session,
  sessionShape,
  type Who,
  whoShape,
} from '../../model/api/console.ts'
import { SandboxError } from '../../model/errors.ts'
import { isOperator, type Principal } from '../../supervisor/access/keys.ts'
import type { NewSession } from '../../supervisor/access/sessions.ts'
import { assertOwnPage, cookieIn, sessionCookie } from '../console/auth.ts'
import { ConsoleStream } from '../console/stream.ts'
import type { ServerParts } from '../parts.ts'
import type { Call, Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { newLinkShape, positionQuery, signInShape } from '../shapes.ts'
import { lastEventId, sse } from '../streams/sse.ts'

/** The console: sessions, sign-in links, and the stream of events that its page shows. */

/** Who is signed in, and what the page may offer. */
const whoJson = (parts: ServerParts, principal: Principal): Who => ({
  key_id: principal.keyId,
  tenant: principal.tenant,
  scopes: principal.scopes,
  operator: isOperator(principal),
  version: parts.settings.version,
  allow_interactive: parts.settings.allowInteractive(),
})

const isSecure = ({ parts, request }: Pick<Call, 'parts' | 'request'>): boolean =>
  parts.settings.tls || request.headers.get('x-forwarded-proto') === 'https'

function welcome(call: Pick<Call, 'parts' | 'request'>, { cookie, page, principal }: NewSession) {
  const session: Session = { page, ...whoJson(call.parts, principal) }
  return reply(201, session, {
    'set-cookie': sessionCookie(cookie, isSecure(call)),
    'cache-control': 'no-store',
  })
}

/** Routes of the console. */
export const consoleRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/console/session',
    summary: 'Sign in to the console with a one-time link or an API key; sets a cookie',
    scope: 'open',
    body: signInShape,
    maxBytes: 4096,
    answers: {
      201: { description: 'signed in; `page` is the secret that the page keeps', shape: sessionShape },
    },
    async handle(call) {
      const { parts, body, request, env } = call
      assertOwnPage(request.headers, request.method)
      const { link, key } = body
      if ((link === undefined) === (key === undefined))
        throw new SandboxError('invalid-input', 'give either `link` or `key`')
      parts.signIns.assert(env?.incoming?.socket?.remoteAddress ?? '')
      return welcome(
        call,
        link === undefined ? await parts.sessions.byKey(key as string) : await parts.sessions.byLink(link),
      )
    },
  }),
  route({
    method: 'GET',
    path: '/v1/console/session',
    summary: 'Get who is signed in',
    scope: 'read',
    answers: { 200: { description: 'what this session may do', shape: whoShape } },
    handle: ({ parts, principal }) => reply(200, whoJson(parts, principal)),
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
      return reply(204, undefined, { 'set-cookie': sessionCookie('', isSecure(call)) })
    },
  }),
  route({
    method: 'POST',
    path: '/v1/console/links',
    summary: 'Create a one-time sign-in link to the console, for a key',
    scope: 'admin',
    body: newLinkShape,
    answers: { 201: { description: 'the link with its secret, shown once', shape: linkShape } },
    async handle({ parts, body }) {
      const link = await parts.sessions.newLink(body.key_id ?? (await parts.keys.consoleKey()))
      return reply(201, { link, path: `/console/#${link}` })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/console/events',
    summary: 'Stream everything that the console shows, as it changes',
    scope: 'read',
    query: positionQuery,
    answers: {
      200: {
        description: 'one event per change; `cut` says why the stream ends',
        type: 'text/event-stream',
        events: consoleEvents,
      },
    },
    handle: (call) => {
      const after = lastEventId(call.request) ?? call.query.after
      return sse(call, (signal) => new ConsoleStream(call.parts, call.principal).events(after, signal))
    },
  }),
]
