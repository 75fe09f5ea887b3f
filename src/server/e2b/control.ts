import { SandboxError } from '../../model/errors.ts'
import { createSandbox } from './create.ts'
import { listAll, listPage } from './listing.ts'
import { defaultHosts, headersOf, hostsOf, networkUpdateShape, upstreamOf } from './network.ts'
import { logsOf, metricsOf } from './observe.ts'
import { aliveOf, bodyOf, nothing, type RestCall, type RestRoute, whileAlive } from './rest.ts'
import { connectShape, createShape, pauseShape, refreshShape, timeoutShape, withoutNulls } from './shapes.ts'
import { accessOf, detailOf, type E2bOptions, networkOptions, OPTIONS, optionsOf, specOf } from './views.ts'

/** E2B's control plane: the life of sandboxes over REST. */

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
  return whileAlive(call, async ({ id }) => {
    const slept = await supervisor.resumeIfPaused(principal, id)
    if (timeout !== undefined) await supervisor.setTimeout(principal, id, Math.max(1, timeout * 1000), true)
    const now = await supervisor.get(principal, id)
    return Response.json(accessOf(surface, principal, now, host), { status: slept ? 201 : 200 })
  })
}

async function kill(call: RestCall): Promise<Response> {
  await whileAlive(call, ({ id }) => call.surface.parts.supervisor.stop(call.principal, id))
  return nothing()
}

async function setTimeout(call: RestCall): Promise<Response> {
  const { timeout = 0 } = await bodyOf(call, timeoutShape)
  // Zero means at once to E2B's clients, and never to us.
  const ms = Math.max(1, timeout * 1000)
  await whileAlive(call, ({ id }) => call.surface.parts.supervisor.setTimeout(call.principal, id, ms))
  return nothing()
}

async function refresh(call: RestCall): Promise<Response> {
  const { duration = 15 } = await bodyOf(call, refreshShape)
  const ms = Math.max(1, duration * 1000)
  await whileAlive(call, ({ id }) => call.surface.parts.supervisor.setTimeout(call.principal, id, ms, true))
  return nothing()
}

async function pause(call: RestCall): Promise<Response> {
  const { memory } = await bodyOf(call, pauseShape)
  await whileAlive(call, ({ id }) => call.surface.parts.supervisor.pause(call.principal, id, memory ?? true))
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
  const { surface, principal } = call
  const seen = await aliveOf(call)
  const defaults = defaultHosts(surface.e2b.policyFor(principal), surface.e2b.internet())
  const hosts = hostsOf(network, allow_internet_access, defaults)
  if (upstreamOf(network) !== specOf(seen).network?.upstream && network.egressProxy)
    throw new SandboxError('unsupported', 'the `egressProxy` of a sandbox cannot be changed while it runs', {
      hint: 'create another sandbox with it',
    })
  const { template, maskHost, workdir, user } = optionsOf(specOf(seen))
  const options: E2bOptions = {
    template,
    ...(workdir ? { workdir } : {}),
    ...(user ? { user } : {}),
    ...(maskHost ? { maskHost } : {}),
    ...networkOptions(network, allow_internet_access),
  }
  const metadata = { [OPTIONS]: JSON.stringify(options) }
  const headers = headersOf(network)
  await surface.parts.supervisor.setAllowHosts(principal, seen.id, hosts, { metadata, headers })
  return nothing()
}

/** The routes of E2B's control plane. */
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
