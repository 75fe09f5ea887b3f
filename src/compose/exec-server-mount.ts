import { createHash, randomBytes } from 'node:crypto'
import type { Duplex } from 'node:stream'
import { CodexExecServer } from '../adapters/codex/exec-server.ts'
import type { OutputAccount } from '../adapters/codex/processes.ts'
import { openOnServer } from '../adapters/remote-tool-sandbox.ts'
import { AgentSession } from '../adapters/session.ts'
import { RingfenceClient } from '../client/client.ts'
import { SandboxError } from '../model/errors.ts'
import type { Mount } from '../server/app.ts'
import { authorize, secretIn } from '../server/auth.ts'
import type { ServerParts } from '../server/parts.ts'
import type { Upgrade, UpgradeTaker } from '../server/upgrade.ts'
import { textSockets } from '../server/websocket-listener.ts'
import type { Principal } from '../supervisor/access/keys.ts'
import type { OutputBudget } from '../supervisor/exec/output-budget.ts'

/** Codex's exec-server protocol on a server: a key gets an address, and every session there has a sandbox of its own. */

const PATH = '/v1/exec-server'
const TICKET_MS = 24 * 3_600_000
const MAX_TICKETS = 32
/** Connections of one tenant. */
const MAX_CONNECTIONS = 32
/** Codex sends and reads a file as one message, in base64. */
const MAX_MESSAGE = 16 * 1024 * 1024
const MAX_FILE = (MAX_MESSAGE / 4) * 3 - 16 * 1024

/** PLATFORM: Codex sends no header, so its address contains a secret; it stands for the key that asked for it. */
type Ticket = {
  readonly keyId: string
  readonly tenant: string
  readonly expiresAt: number
  readonly server: CodexExecServer
  /** The key again, or an error if it is no longer valid. */
  readonly principal: () => Promise<Principal>
}

/** The route that hands out addresses, the sockets behind them, and their end. */
export type ExecServerMount = {
  readonly mount: Mount
  readonly upgrade: UpgradeTaker
  readonly close: () => Promise<void>
}

/** Codex's executor on a server. Its sandboxes are made by `/v1` with the caller's key, so nothing more is permitted. */
export function execServerMount(): ExecServerMount {
  const tickets = new Map<string, Ticket>()
  const sockets = textSockets({ maxMessage: MAX_MESSAGE })
  const connections = new Connections()
  const mount: Mount = (app, { authenticate, parts }) => {
    app.post(PATH, async (context) => {
      const principal = await authenticate(context, 'exec')
      await dropOld(tickets)
      assertRoom(tickets, principal)
      const { headers } = context.req.raw
      const secret = secretIn(headers) ?? ''
      const host = headers.get('host') ?? 'localhost'
      const inside: typeof fetch = async (input, init) =>
        app.request(String(input), {
          ...init,
          headers: { ...(init?.headers as Record<string, string>), host },
        })
      const client = new RingfenceClient({ url: `http://${host}`, apiKey: secret, fetch: inside })
      const name = randomBytes(24).toString('hex')
      const expiresAt = Date.now() + TICKET_MS
      tickets.set(digestOf(name), {
        keyId: principal.keyId,
        tenant: principal.tenant,
        expiresAt,
        server: new CodexExecServer(() => new AgentSession(() => openOnServer(client, 'codex')), {
          output: accountOf(parts.supervisor.output, principal.tenant),
          maxFile: MAX_FILE,
        }),
        principal: () => keyInForce(parts, secret),
      })
      return context.json({ path: `${PATH}/${name}`, expires_at: new Date(expiresAt).toISOString() }, 201)
    })
  }
  const upgrade: UpgradeTaker = async (request) => {
    const [, name] = /^\/v1\/exec-server\/([0-9a-f]{48})$/.exec(request.url.pathname) ?? []
    if (name === undefined) return false
    const ticket = tickets.get(digestOf(name))
    if (!ticket || ticket.expiresAt < Date.now())
      throw new SandboxError('unauthenticated', 'this address is not valid', { hint: 'ask for a new one' })
    connections.add(ticket.tenant, request.socket)
    await enter(request, ticket)
    sockets.accept(request.request, request.socket, request.head, (socket) => ticket.server.connect(socket))
    return true
  }
  return {
    mount,
    upgrade,
    async close() {
      sockets.close()
      await Promise.all([...tickets.values()].map(({ server }) => server.close()))
    },
  }
}

/** SECURITY: each connection may hold a message that has not arrived completely, so a tenant has a limited number. */
class Connections {
  readonly #open = new Map<string, number>()

  /** Counts a connection until it is closed. */
  add(tenant: string, socket: Duplex): void {
    const open = this.#open.get(tenant) ?? 0
    if (open >= MAX_CONNECTIONS)
      throw new SandboxError(
        'too-many-requests',
        `this tenant already has ${open} connections to exec-server`,
        { hint: 'close one of them' },
      )
    this.#open.set(tenant, open + 1)
    socket.once('close', () => {
      const left = (this.#open.get(tenant) ?? 1) - 1
      if (left === 0) this.#open.delete(tenant)
      else this.#open.set(tenant, left)
    })
  }
}

/** What a server keeps for a client to read again is output of its tenant. */
const accountOf = (budget: OutputBudget, tenant: string): OutputAccount => ({
  add: (process) => budget.add(tenant, process),
  remove: (process) => budget.remove(tenant, process),
  count: (bytes) => budget.count(tenant, bytes),
  reclaim: () => budget.reclaim(tenant),
})

/** SECURITY: the connection ends when the key is revoked. */
async function enter({ parts, socket }: Upgrade, { principal, keyId }: Ticket): Promise<void> {
  const ask = async (): Promise<void> => authorize(await principal(), 'exec', false)
  await ask()
  // Stands for the key, and for nothing that opens anything.
  const headers = new Headers({ authorization: `Bearer exec-server.${keyId}` })
  parts.streams.enter('secret', headers, undefined, ask, socket)
}

async function keyInForce(parts: ServerParts, secret: string): Promise<Principal> {
  const principal = await parts.keys.principalOf(secret)
  if (principal) return principal
  throw new SandboxError('unauthenticated', 'the key is no longer valid')
}

async function dropOld(tickets: Map<string, Ticket>): Promise<void> {
  for (const [name, { expiresAt, server }] of tickets)
    if (expiresAt < Date.now()) {
      tickets.delete(name)
      await server.close()
    }
}

function assertRoom(tickets: ReadonlyMap<string, Ticket>, { tenant }: Principal): void {
  const own = [...tickets.values()].filter((ticket) => ticket.tenant === tenant)
  if (own.length >= MAX_TICKETS)
    throw new SandboxError(
      'resource-exhausted',
      `this tenant already has ${own.length} addresses for exec-server`,
      {
        hint: 'use one of them; an address is valid for a day',
      },
    )
}

/** The address itself is not kept. */
const digestOf = (name: string): string => createHash('sha256').update(name).digest('hex')
