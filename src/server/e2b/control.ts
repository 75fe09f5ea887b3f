import type { Context } from 'hono'
import { SandboxError } from '../../model/errors.ts'
import type { Shape } from '../../model/shape.ts'
import type { Principal, Scope } from '../../supervisor/access/keys.ts'
import type { SandboxView } from '../../supervisor/provisioner.ts'
import type { AppEnv } from '../app.ts'
import { jsonBody } from '../body.ts'
import { createSandbox } from './create.ts'
import { restProblem } from './errors.ts'
import type { E2bSurface } from './guest.ts'
import { fromE2bId } from './ids.ts'
import { listAll, listPage } from './listing.ts'
import { allowHostsOf, networkUpdateShape } from './network.ts'
import { logsOf, metricsOf } from './observe.ts'
import { connectShape, createShape, pauseShape, refreshShape, timeoutShape, withoutNulls } from './shapes.ts'
import { accessOf, detailOf } from './views.ts'

/** E2B's control plane: the life of sandboxes over REST. */

/** One request after its key was checked. */
export type RestCall = {
  readonly surface: E2bSurface
  readonly context: Context<AppEnv>
  readonly principal: Principal
  readonly params: Readonly<Record<string, string>>
  readonly query: URLSearchParams
  readonly host: string
}

export type RestRoute = {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE' | 'PATCH'
  readonly path: string
  readonly scope: Scope
  readonly handle: (call: RestCall) => Promise<Response>
}

export async function serveRest(
  surface: E2bSurface,
  route: RestRoute,
  context: Context<AppEnv>,
): Promise<Response> {
  try {
    const principal = await surface.authenticate(context, route.scope)
    const host = context.req.header('host') ?? ''
    const query = new URL(context.req.url).searchParams
    return await route.handle({ surface, context, principal, params: context.req.param(), query, host })
  } catch (error) {
    return restProblem(error, surface.parts.log)
  }
}

export const bodyOf = <T>({ context }: RestCall, shape: Shape<T>): Promise<T> =>
  jsonBody(context.req.raw, shape)

/** INVARIANT: an empty answer that is not 204 says its length, or E2B's clients wait for JSON. */
export const nothing = (status = 204): Response =>
  status === 204
    ? new Response(null, { status })
    : new Response('', { status, headers: { 'content-length': '0' } })

/** A sandbox that has not ended; to E2B's clients one that has was never there. */
export async function aliveOf({
  surface,
  principal,
  params,
}: RestCall): Promise<SandboxView & { readonly id: string }> {
  const id = fromE2bId(params.id ?? '')
  const seen = id === undefined ? undefined : await surface.parts.supervisor.get(principal, id)
  if (!id || !seen?.live || !['ready', 'paused'].includes(seen.live.state))
    throw new SandboxError('sandbox-not-found', `there is no sandbox \`${(params.id ?? '').slice(0, 64)}\``)
  return { ...seen, id }
}

const create =
  (defaultSeconds: number) =>
  async (call: RestCall): Promise<Response> => {
    const body = await bodyOf(call, createShape)
    const made = await createSandbox(call.surface, call.principal, body, defaultSeconds)
    return Response.json(accessOf(call.surface, call.principal, made, call.host), { status: 201 })
  }

/** Wakes a sandbox that sleeps; one that runs never gets less time than it had. */
async function connect(call: RestCall): Promise<Response> {
  const { surface, principal, host } = call
  const { supervisor } = surface.parts
  const { timeout } = await bodyOf(call, connectShape)
  const seen = await aliveOf(call)
  const slept = seen.row.state === 'paused'
  if (slept) await supervisor.resume(principal, seen.id)
  if (timeout !== undefined)
    await supervisor.setTimeout(principal, seen.id, Math.max(1, timeout * 1000), true)
  const now = await supervisor.get(principal, seen.id)
  return Response.json(accessOf(surface, principal, now, host), { status: slept ? 201 : 200 })
}

async function kill(call: RestCall): Promise<Response> {
  const { id } = await aliveOf(call)
  await call.surface.parts.supervisor.stop(call.principal, id)
  return nothing()
}

async function setTimeout(call: RestCall): Promise<Response> {
  const { timeout = 0 } = await bodyOf(call, timeoutShape)
  const { id } = await aliveOf(call)
  // Zero means at once to E2B's clients, and never to us.
  await call.surface.parts.supervisor.setTimeout(call.principal, id, Math.max(1, timeout * 1000))
  return nothing()
}

async function refresh(call: RestCall): Promise<Response> {
  const { duration = 15 } = await bodyOf(call, refreshShape)
  const { id } = await aliveOf(call)
  await call.surface.parts.supervisor.setTimeout(call.principal, id, Math.max(1, duration * 1000), true)
  return nothing()
}

async function pause(call: RestCall): Promise<Response> {
  await bodyOf(call, pauseShape)
  const { id } = await aliveOf(call)
  await call.surface.parts.supervisor.pause(call.principal, id)
  return nothing()
}

async function resume(call: RestCall): Promise<Response> {
  const answer = await connect(call)
  return answer.status === 201
    ? answer
    : Promise.reject(new SandboxError('conflict', 'the sandbox is running'))
}

async function setNetwork(call: RestCall): Promise<Response> {
  const { allow_internet_access, ...network } = await bodyOf(call, withoutNulls(networkUpdateShape))
  const { id, live } = await aliveOf(call)
  const hosts = allowHostsOf(network, allow_internet_access)
  // Nothing named means the operator's own list, as at the begin.
  const wanted = hosts ?? live?.sandbox?.plan.network.allowHosts ?? []
  await call.surface.parts.supervisor.setAllowHosts(call.principal, id, wanted)
  return nothing()
}

export const CONTROL: readonly RestRoute[] = [
  { method: 'POST', path: '/v2/sandboxes', scope: 'create', handle: create(300) },
  { method: 'POST', path: '/sandboxes', scope: 'create', handle: create(15) },
  {
    method: 'GET',
    path: '/v2/sandboxes',
    scope: 'read',
    handle: ({ surface, principal, query }) => listPage(surface, principal, query),
  },
  {
    method: 'GET',
    path: '/sandboxes',
    scope: 'read',
    handle: ({ surface, principal, query }) => listAll(surface, principal, query),
  },
  {
    method: 'GET',
    path: '/sandboxes/:id',
    scope: 'read',
    handle: async (call) =>
      Response.json(detailOf(call.surface, call.principal, await aliveOf(call), call.host)),
  },
  { method: 'DELETE', path: '/sandboxes/:id', scope: 'create', handle: kill },
  { method: 'POST', path: '/sandboxes/:id/timeout', scope: 'create', handle: setTimeout },
  { method: 'POST', path: '/sandboxes/:id/refreshes', scope: 'create', handle: refresh },
  { method: 'POST', path: '/sandboxes/:id/connect', scope: 'create', handle: connect },
  { method: 'POST', path: '/v2/sandboxes/:id/connect', scope: 'create', handle: connect },
  { method: 'POST', path: '/sandboxes/:id/pause', scope: 'create', handle: pause },
  { method: 'POST', path: '/sandboxes/:id/resume', scope: 'create', handle: resume },
  { method: 'PUT', path: '/sandboxes/:id/network', scope: 'create', handle: setNetwork },
  { method: 'GET', path: '/sandboxes/:id/metrics', scope: 'read', handle: metricsOf },
  { method: 'GET', path: '/sandboxes/:id/logs', scope: 'read', handle: logsOf },
  { method: 'GET', path: '/v2/sandboxes/:id/logs', scope: 'read', handle: logsOf },
]
