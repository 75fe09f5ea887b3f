import type { Context } from 'hono'
import { SandboxError } from '../../model/errors.ts'
import type { Shape } from '../../model/shape.ts'
import type { Principal, Scope } from '../../supervisor/access/keys.ts'
import type { SandboxView } from '../../supervisor/provisioner.ts'
import type { AppEnv } from '../app.ts'
import { jsonBody } from '../body.ts'
import { restProblem } from './errors.ts'
import { fromE2bId } from './ids.ts'
import type { E2bSurface } from './sandbox-request.ts'

/** One request after its key was checked. */
export type RestCall = {
  readonly surface: E2bSurface
  readonly context: Context<AppEnv>
  readonly principal: Principal
  readonly params: Readonly<Record<string, string>>
  readonly query: URLSearchParams
  readonly host: string
}

/** One REST route of E2B's API. */
export type RestRoute = {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE' | 'PATCH'
  readonly path: string
  readonly scope: Scope
  readonly handle: (call: RestCall) => Promise<Response>
}

/** Authenticates a REST request and runs its handler. */
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

/** The parsed body of a REST request. */
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

/** Does something with such a sandbox. If it ends meanwhile, whatever failed because of that, it was not found. */
export async function whileAlive<T>(
  call: RestCall,
  work: (seen: SandboxView & { readonly id: string }) => Promise<T>,
): Promise<T> {
  const seen = await aliveOf(call)
  try {
    return await work(seen)
  } catch (error) {
    await aliveOf(call)
    throw error
  }
}
