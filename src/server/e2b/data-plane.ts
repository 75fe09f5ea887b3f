import { timingSafeEqual } from 'node:crypto'
import type { Context } from 'hono'
import { SandboxError } from '../../model/errors.ts'
import { type StreamEnd, streamEndOf } from '../../model/stream-end.ts'
import type { Principal } from '../../supervisor/access/keys.ts'
import { claimedSandbox } from '../../supervisor/access/sandbox-tokens.ts'
import type { SandboxView } from '../../supervisor/provisioner.ts'
import type { AppEnv } from '../app.ts'
import { enterByMaker, makerInForce, secretIn } from '../auth.ts'
import { clientAddress } from '../cluster/peers.ts'
import { passOn } from '../ports/ports.ts'
import { type Stream, streaming, unary } from './envd/connect.ts'
import * as filesystem from './envd/filesystem.ts'
import * as processes from './envd/processes.ts'
import { download, isExpired, isSignature, signedSandbox, upload } from './envd/transfer.ts'
import * as watchers from './envd/watchers.ts'
import { connectAnswer, connectProblem, notRunning, restProblem } from './errors.ts'
import { ENVD_PORT, INTERPRETER_PORT, MCP_PORT, type Target, targetOf, toE2bId } from './ids.ts'
import { interpreter } from './interpreter/interpreter.ts'
import { serveGateway } from './mcp.ts'
import { awake, type E2bSurface, type SandboxRequest, woken } from './sandbox-request.ts'
import { maskOf, OPTIONS, specOf } from './views.ts'

/** What E2B's clients say to a sandbox itself; told from the rest by header, token, signature or host name. */

const UNARY = {
  '/process.Process/': processes.UNARY,
  '/filesystem.Filesystem/': { ...filesystem.UNARY, ...watchers.UNARY },
} as const

type StreamRow = {
  readonly handle: (guest: SandboxRequest, gone: AbortSignal) => Stream
  readonly keepalive: unknown
}
const STREAMS: Readonly<Record<string, StreamRow>> = {
  '/process.Process/Start': { handle: processes.start, keepalive: processes.KEEPALIVE },
  '/process.Process/Connect': { handle: processes.connect, keepalive: processes.KEEPALIVE },
  '/process.Process/StreamInput': { handle: processes.streamInput, keepalive: {} },
  '/filesystem.Filesystem/WatchDir': { handle: filesystem.watchDir, keepalive: filesystem.WATCH_KEEPALIVE },
}

/** The sandbox that a request speaks to, or nothing: then it is for somebody else. */
export function routed(surface: E2bSurface, context: Context<AppEnv>): Target | undefined {
  const direct = targetOf(context.req.header('host') ?? '', (name) => context.req.header(name))
  if (direct) return direct
  const path = context.req.path
  if (!/^\/(files|health|process\.Process\/|filesystem\.Filesystem\/)/.test(path)) return undefined
  // PLATFORM: E2B's clients 2.7 to 2.12 name no sandbox when they move files; their token does.
  const claimed = claimedSandbox(context.req.header('x-access-token') ?? '')
  if (claimed) return { id: claimed, port: ENVD_PORT }
  const signed = path === '/files' ? signedFor(surface, context) : undefined
  return signed === undefined ? undefined : { id: signed, port: ENVD_PORT }
}

function signedFor(surface: E2bSurface, context: Context<AppEnv>): string | undefined {
  const query = new URL(context.req.url).searchParams
  if (!isSignature(query)) return undefined
  const { supervisor, wrongKeys } = surface.parts
  const found = signedSandbox(supervisor.liveIds, context.req.method, query, surface.e2b)
  // SECURITY: a signature of no sandbox is a wrong key: looking for it costs the more, the more sandboxes there are.
  if (found === undefined) wrongKeys.assert(clientAddress(context.env?.incoming))
  return found
}

/** Serves a request to one sandbox. */
export async function serveTarget(
  surface: E2bSurface,
  context: Context<AppEnv>,
  target: Target,
): Promise<Response> {
  const rpc = /^\/(process\.Process|filesystem\.Filesystem)\//.test(context.req.path)
  try {
    if (target.port === ENVD_PORT) return await envd(surface, context, target.id)
    const guest = await traffic(surface, context, target.id, doorOf(target, context.req.path))
    if (target.port === INTERPRETER_PORT) return await interpreter(guest)
    const gateway = target.port === MCP_PORT ? await serveGateway(surface, guest) : undefined
    if (gateway) return gateway
    const host = maskOf(guest.live.row, target.port)
    return await passOn(guest.live, context.env.incoming, target.port, host).catch(() => closedPort(target))
  } catch (error) {
    if (error instanceof SandboxError && error.code === 'sandbox-not-found') return notRunning(target.id)
    return rpc && !(error instanceof Error && 'id' in error)
      ? connectAnswer(connectProblem(error, surface.parts.log))
      : restProblem(error, surface.parts.log)
  }
}

const closedPort = ({ id, port }: Target): Response =>
  Response.json(
    { sandboxId: toE2bId(id), message: 'The sandbox is running but port is not open', port, code: 502 },
    { status: 502 },
  )

const anyone = (id: string): Principal => ({ keyId: '', tenant: '', scopes: ['exec', 'read'], sandboxId: id })

async function envd(surface: E2bSurface, context: Context<AppEnv>, id: string): Promise<Response> {
  const { supervisor } = surface.parts
  const entry = (await supervisor.get(anyone(id), id)).live
  const { path, method } = context.req
  // Asking whether a sandbox runs does not wake it, and neither does a request that is refused.
  if (path === '/health' || !entry || !supervisor.wakes(entry)) awake(entry, id)
  if (path === '/health') return new Response(null, { status: 204 })
  const query = new URL(context.req.url).searchParams
  const request = context.req.raw
  const principal = await principalOf(surface, context, id, path === '/files' ? query : undefined)
  const live = await woken(surface, entry, id)
  const guest: SandboxRequest = {
    surface,
    context,
    request,
    principal,
    live: entry as SandboxRequest['live'],
    sandbox: live,
  }
  if (path === '/files' && method === 'GET') return download(guest, query)
  if (path === '/files' && method === 'POST') return upload(guest, query)
  if (path === '/envs' && method === 'GET') return Response.json(live.plan.env)
  if (path === '/metrics' && method === 'GET')
    throw new SandboxError('unsupported', 'this is not measured here', {
      hint: 'use the route of the sandbox',
    })
  return rpc(guest, path, method)
}

function rpc(guest: SandboxRequest, path: string, method: string): Response | Promise<Response> {
  const { request, surface } = guest
  const { log } = surface.parts
  if (method === 'POST') {
    const stream = Object.hasOwn(STREAMS, path) ? STREAMS[path] : undefined
    if (stream) return open(guest, stream)
    for (const [prefix, handlers] of Object.entries(UNARY)) {
      const name = path.startsWith(prefix) ? path.slice(prefix.length) : ''
      const handle = Object.hasOwn(handlers, name) ? handlers[name] : undefined
      if (handle) return unary(request, (message) => handle(guest, message), log)
    }
  }
  // Also E2B's own inner routes (`/init`, `/freeze` and the like), which are for its infrastructure alone.
  throw new SandboxError('not-found', 'no such route')
}

/** A stream that is told why it ends: its key was revoked, the server shuts down, or the sandbox is paused. */
function open(guest: SandboxRequest, { handle, keepalive }: StreamRow): Response {
  const { request, live, context, surface } = guest
  const { log, streams } = surface.parts
  // It may have been put to sleep while the token was checked.
  awake(live, live.id)
  const onEnd = (say: (end: StreamEnd) => void): (() => void) => {
    streams.onEnd(context.env?.outgoing, say)
    return live.onPause(() => say(streamEndOf('paused')))
  }
  return streaming(request, (gone) => handle(guest, gone), { keepalive, log, onEnd })
}

/** SECURITY: a signature opens one file in one way; everything else needs the sandbox's token. */
async function principalOf(
  surface: E2bSurface,
  context: Context<AppEnv>,
  id: string,
  query: URLSearchParams | undefined,
): Promise<Principal> {
  const signed = query?.has('signature') && context.req.header('x-access-token') === undefined
  if (!signed) return owner(surface, context, id)
  await enterByMaker(surface.parts, context, async () => {
    if (signedSandbox([id], context.req.method, query as URLSearchParams, surface.e2b) !== id)
      throw new SandboxError('unauthenticated', 'invalid signature')
    if (isExpired(query as URLSearchParams))
      throw new SandboxError('unauthenticated', 'signature is already expired')
    return (await surface.parts.supervisor.get(anyone(id), id)).row.keyId
  })
  return anyone(id)
}

/** SECURITY: a key that is in force says who somebody is, not that this sandbox is theirs. */
async function owner(surface: E2bSurface, context: Context<AppEnv>, id: string): Promise<Principal> {
  const principal = await surface.authenticate(context, 'exec', id)
  await surface.parts.supervisor.get(principal, id)
  return principal
}

/**
 * What opens a port: knowing its address, where its owner wants it so; the traffic token; or the sandbox's own. SECURITY: the
 * interpreter's port is never open to everybody, and code runs there only with the token that runs commands. E2B's clients
 * send nothing but the traffic token when they list or make contexts, which runs nothing.
 */
type RequiredToken = 'address' | 'traffic' | 'own'
const doorOf = ({ port }: Target, path: string): RequiredToken =>
  port !== INTERPRETER_PORT ? 'address' : /^\/(contexts(\/|$)|health$)/.test(path) ? 'traffic' : 'own'

/** A port of the sandbox, for clients that may use it. */
async function traffic(
  surface: E2bSurface,
  context: Context<AppEnv>,
  id: string,
  door: RequiredToken,
): Promise<SandboxRequest> {
  const principal = anyone(id)
  const seen = await surface.parts.supervisor.get(principal, id)
  if (!seen.live || !surface.parts.supervisor.wakes(seen.live)) awake(seen.live, id)
  const given = context.req.header('e2b-traffic-access-token')
  const { incoming, outgoing } = context.env ?? {}
  const open = { headers: context.req.raw.headers, answer: outgoing, address: clientAddress(incoming) }
  const passes =
    door !== 'own' && (await mayPass(surface, seen, given, { ...open, byAddress: door === 'address' }))
  if (!passes) await ownerOfPort(surface, context, seen, door)
  const live = await woken(surface, seen.live, id)
  return {
    surface,
    context,
    request: context.req.raw,
    principal,
    live: seen.live as SandboxRequest['live'],
    sandbox: live,
  }
}

/**
 * A private port of a sandbox that E2B's API made is answered as E2B does it if there is no credential at all: forbidden,
 * with the name of the missing header.
 */
async function ownerOfPort(
  surface: E2bSurface,
  context: Context<AppEnv>,
  seen: SandboxView,
  door: RequiredToken,
): Promise<void> {
  try {
    await owner(surface, context, seen.row.id)
  } catch (error) {
    if (!(OPTIONS in (specOf(seen).metadata ?? {}))) throw error
    const isMissing = error instanceof SandboxError && error.code === 'unauthenticated'
    if (!isMissing || door !== 'address' || secretIn(context.req.raw.headers) !== undefined) throw error
    throw new SandboxError('forbidden', 'the ports of this sandbox are private', {
      hint: "send the header 'e2b-traffic-access-token'",
    })
  }
}

type Opening = {
  readonly headers: Headers
  readonly answer: Parameters<E2bSurface['parts']['streams']['enter']>[4]
  /** Of the client. */
  readonly address: string
  /** Whether knowing the address may be enough. */
  readonly byAddress: boolean
}

/**
 * Whether a port is open to everybody who knows its address, or to the one with this token. SECURITY: a request with a token counts
 * for the rate of the key that made the sandbox, and one with a wrong token for the rate of the client's address.
 */
export async function mayPass(
  { parts, e2b }: Pick<E2bSurface, 'parts' | 'e2b'>,
  { row, ...seen }: SandboxView,
  token: string | undefined,
  open: Opening,
): Promise<boolean> {
  const policy = e2b.policyFor({ keyId: row.keyId, tenant: row.tenant, scopes: [] })
  const isPublic = specOf({ row, ...seen }).publicPorts && policy.publicPorts !== false
  if (open.byAddress && isPublic) return true
  if (token === undefined) return false
  if (!same(token, e2b.tokens.traffic(row.id))) {
    parts.wrongKeys.assert(open.address)
    throw new SandboxError('forbidden', "the token in 'e2b-traffic-access-token' is wrong")
  }
  const ask = (): Promise<Principal> => makerInForce(parts.keys, row.keyId)
  await ask()
  parts.requests.assert(row.keyId)
  parts.streams.enter('traffic', open.headers, row.id, ask, open.answer)
  return true
}

/** Compares two secrets in constant time. */
export function same(one: string, other: string): boolean {
  const [a, b] = [Buffer.from(one), Buffer.from(other)]
  return a.length === b.length && timingSafeEqual(a, b)
}
