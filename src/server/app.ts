import { randomBytes } from 'node:crypto'
import { type Context, Hono } from 'hono'
import { matchedRoutes } from 'hono/route'
import { SandboxError } from '../model/errors.ts'
import { NO_TRACER } from '../model/tracer.ts'
import type { Principal, Scope } from '../supervisor/access/keys.ts'
import { authenticator, authorize } from './auth.ts'
import { jsonBody, queryOf } from './body.ts'
import { clientAddress } from './cluster/peers.ts'
import { consolePrincipal } from './console/auth.ts'
import { checkHost, checkOrigin, limitWrongKeys } from './guard.ts'
import { openApi } from './openapi.ts'
import type { ServerParts } from './parts.ts'
import { problem } from './problem.ts'
import { type Bindings, type Call, type Route, responseOf } from './route.ts'
import { approvalRoutes } from './routes/approvals.ts'
import { auditRoutes } from './routes/audit.ts'
import { consoleRoutes } from './routes/console.ts'
import { execRoutes } from './routes/execs.ts'
import { fileRoutes } from './routes/files.ts'
import { hostRoutes } from './routes/host.ts'
import { isolationRoutes } from './routes/isolation.ts'
import { keyRoutes } from './routes/keys.ts'
import { nodeRoutes } from './routes/nodes.ts'
import { operatorRoutes } from './routes/operator.ts'
import { policyRoutes } from './routes/policy.ts'
import { portRoutes } from './routes/ports.ts'
import { reviewRoutes } from './routes/reviews.ts'
import { sandboxRoutes } from './routes/sandboxes.ts'
import { skillRoutes } from './routes/skills.ts'
import { snapshotRoutes } from './routes/snapshots.ts'
import { templateRoutes } from './routes/templates.ts'
import { volumeRoutes } from './routes/volumes.ts'
import { webhookRoutes } from './routes/webhooks.ts'
import type { Credential } from './streams/authenticated-streams.ts'

/** Every route under `/v1` and beside it; `/openapi.json` describes exactly these. */
export const ROUTES: readonly Route[] = [
  ...sandboxRoutes,
  ...isolationRoutes,
  ...execRoutes,
  ...fileRoutes,
  ...portRoutes,
  ...reviewRoutes,
  ...snapshotRoutes,
  ...templateRoutes,
  ...volumeRoutes,
  ...auditRoutes,
  ...approvalRoutes,
  ...policyRoutes,
  ...skillRoutes,
  ...keyRoutes,
  ...webhookRoutes,
  ...consoleRoutes,
  ...hostRoutes,
  ...nodeRoutes,
  ...operatorRoutes,
]

/** The types of Hono's context. */
export type AppEnv = { Bindings: Bindings; Variables: { requestId: string; principal?: Principal } }

/**
 * What another surface gets when it is mounted beside `/v1` (E2B's routes, `/mcp`, the console's files).
 *
 * THE SEAM: `compose/compose.ts` passes `mounts`, each a function that adds its routes to the same Hono app. Before any of them
 * runs, Host, Origin and rate were checked and a request id was given; whatever they throw is translated by the same
 * `problem`. A surface authenticates with `authenticate(context, scope, sandboxId?)`, which takes `Authorization: Bearer`,
 * `X-API-KEY` or, with a sandbox id, that sandbox's token, and then works with `parts` as the routes here do. A surface
 * that speaks another error format catches its own errors and lets the rest pass. WebSocket upgrades of a surface go
 * through `upgrades` (see `upgrade.ts`).
 */
export type Surface = {
  readonly parts: ServerParts
  readonly authenticate: (context: Context<AppEnv>, scope: Scope, sandboxId?: string) => Promise<Principal>
}
/** Adds another API to the server. */
export type Mount = ((app: Hono<AppEnv>, surface: Surface) => void) & {
  /** Before our own routes: for a surface that tells its requests by more than their path. */
  readonly early?: boolean
}

/** The HTTP application with all routes. */
export function createApp(parts: ServerParts, version: string, mounts: readonly Mount[] = []): Hono<AppEnv> {
  const app = new Hono<AppEnv>()
  const surface = { parts, authenticate: authenticateWith(parts, false) }
  // SECURITY: the console's cookie opens our own routes and no other surface's.
  const own = { parts, authenticate: authenticateWith(parts, true) }
  app.use('*', async (context, next) => journaled(context, next, parts))
  app.use('*', async (context, next) => inTrace(context, next, parts))
  app.use('*', async (context, next) => guarded(context, next, parts))
  for (const mount of mounts) if (mount.early) mount(app, surface)
  const description = openApi(ROUTES, version)
  app.get('/openapi.json', (context) => context.json(description))
  for (const route of ROUTES) {
    const handler = (context: Context<AppEnv>): Promise<Response> => serve(context, route, own)
    if (route.method === 'ALL') app.all(route.path, handler)
    else app.on(route.method, route.path, handler)
  }
  for (const mount of mounts) if (!mount.early) mount(app, surface)
  app.notFound((context) => {
    const known = ROUTES.some((route) => pathFits(route.path, context.req.path))
    const error = known
      ? new SandboxError('method-not-allowed', `${context.req.method} is not supported on this route`)
      : new SandboxError('not-found', 'no such route', { hint: 'see /openapi.json' })
    return problem(error, context.get('requestId'))
  })
  app.onError((error, context) => problem(error, context.get('requestId') ?? 'unknown', parts.log))
  return app
}

/** The pattern of the route that answered. */
const routeOf = (context: Context<AppEnv>): string | null =>
  matchedRoutes(context).findLast(({ path }) => !/^\/?\*$/.test(path))?.path ?? null

/** A request as a span of its caller's trace. It ends when the answer begins. */
async function inTrace(
  context: Context<AppEnv>,
  next: () => Promise<void>,
  { tracer }: ServerParts,
): Promise<void> {
  if (tracer === NO_TRACER) return next()
  const { method } = context.req
  const span = tracer.begin(method, { 'http.request.method': method }, context.req.header('traceparent'))
  await tracer.within(span, next)
  const route = routeOf(context)
  span.describe({
    'http.route': route ?? undefined,
    'http.response.status_code': context.res.status,
    'ringfence.request_id': context.get('requestId'),
    'ringfence.tenant': context.get('principal')?.tenant,
  })
  const error = context.res.status >= 500 ? context.error : undefined
  span.end({ error, name: route === null ? method : `${method} ${route}` })
}

/** Outermost, so that requests that the guard rejects are in the log as well. */
async function journaled(
  context: Context<AppEnv>,
  next: () => Promise<void>,
  { journal }: ServerParts,
): Promise<void> {
  const started = performance.now()
  await next()
  if (!journal) return
  const principal = context.get('principal')
  journal.request({
    request_id: context.get('requestId') ?? 'unknown',
    method: context.req.method,
    route: routeOf(context),
    status: context.res.status,
    duration_ms: Math.round((performance.now() - started) * 10) / 10,
    tenant: principal?.tenant ?? null,
    key_id: principal?.keyId ?? null,
  })
}

async function guarded(
  context: Context<AppEnv>,
  next: () => Promise<void>,
  parts: ServerParts,
): Promise<Response | undefined> {
  const started = performance.now()
  const given = context.req.header('x-request-id')
  const requestId = given && /^[\w-]{1,64}$/.test(given) ? given : randomBytes(8).toString('hex')
  context.set('requestId', requestId)
  const { hosts, origins } = parts.settings
  const host = context.req.header('host') ?? ''
  checkHost(host, hosts)
  const origin = context.req.header('origin')
  checkOrigin(origin, host, origins)
  if (context.req.method === 'OPTIONS' && origin !== undefined) return preflight(origin, requestId)
  await next()
  context.res.headers.set('x-request-id', requestId)
  if (context.res.headers.get('content-type')?.startsWith('application/json'))
    context.res.headers.set('x-content-type-options', 'nosniff')
  if (origin !== undefined) {
    context.res.headers.set('access-control-allow-origin', origin)
    context.res.headers.append('vary', 'origin')
  }
  const status = `${Math.floor(context.res.status / 100)}xx`
  parts.metrics.count('ringfence_requests_total', 'Requests by status.', { status })
  parts.metrics.observe(
    'ringfence_request_seconds',
    'Until the answer began.',
    { method: context.req.method },
    (performance.now() - started) / 1000,
  )
  return undefined
}

/** Only pages that passed the check of their origin get this far. */
const preflight = (origin: string, requestId: string): Response =>
  new Response(null, {
    status: 204,
    headers: {
      'access-control-allow-origin': origin,
      'access-control-allow-methods': 'GET, POST, PUT, DELETE, PATCH',
      'access-control-allow-headers':
        'authorization, content-type, idempotency-key, last-event-id, x-api-key, x-request-id',
      'access-control-max-age': '600',
      vary: 'origin',
      'x-request-id': requestId,
    },
  })

function authenticateWith(parts: ServerParts, fromConsole: boolean): Surface['authenticate'] {
  const auth = authenticator(parts.keys, parts.supervisor)
  return async (context, scope, sandboxId) => {
    try {
      const { headers, method } = context.req.raw
      let by: Credential = 'secret'
      const ask = async (): Promise<Principal> => {
        const person = fromConsole ? await consolePrincipal(parts.sessions, headers, method) : undefined
        by = person ? 'session' : 'secret'
        return person ?? (await auth.principalOf(headers, sandboxId))
      }
      const principal = await ask()
      context.set('principal', principal)
      parts.requests.assert(principal.keyId)
      authorize(principal, scope, sandboxId !== undefined)
      parts.streams.enter(by, headers, sandboxId, ask, context.env?.outgoing)
      return principal
    } catch (error) {
      limitWrongKeys(error, parts, clientAddress(context.env?.incoming))
      throw error
    }
  }
}

/** The caller of routes that need no key. */
const NOBODY: Principal = { keyId: '', tenant: '', scopes: [] }

async function serve(context: Context<AppEnv>, route: Route, surface: Surface): Promise<Response> {
  const params = context.req.param() as Record<string, string>
  const sandboxId = route.sandboxToken ? params.id : undefined
  const principal =
    route.scope === 'open' ? NOBODY : await surface.authenticate(context, route.scope, sandboxId)
  const query = route.query?.parse(queryOf(new URL(context.req.url)), '')
  const body = route.body ? await jsonBody(context.req.raw, route.body, route.maxBytes) : undefined
  const call: Call = {
    parts: surface.parts,
    principal,
    params,
    query,
    body,
    request: context.req.raw,
    env: context.env,
    requestId: context.get('requestId'),
  }
  return responseOf(await route.handle(call))
}

function pathFits(pattern: string, path: string): boolean {
  const source = pattern.replace(/:\w+/g, '[^/]+').replace(/\*$/, '.*')
  return new RegExp(`^${source}$`).test(path)
}
