import { request as httpRequest, type IncomingMessage, type OutgoingHttpHeaders } from 'node:http'
import type { Duplex } from 'node:stream'
import { type WebSocket, WebSocketServer } from 'ws'
import { SandboxError } from '../model/errors.ts'
import { number, object, oneOf, optional, text } from '../model/shape.ts'
import type { StreamEnd } from '../model/stream-end.ts'
import type { Principal } from '../supervisor/access/keys.ts'
import type { Started } from '../supervisor/exec/exec-service.ts'
import type { LiveSandbox } from '../supervisor/lifecycle/live-sandbox.ts'
import { authenticator, authorize } from './auth.ts'
import { bytesOf, parseJson } from './body.ts'
import { clientAddress } from './cluster/peers.ts'
import { consolePrincipal } from './console/auth.ts'
import { isPortHost } from './e2b/ids.ts'
import { assertInteractive, checkHost, checkOrigin, limitWrongKeys } from './guard.ts'
import type { ServerParts } from './parts.ts'
import { isKeptWhenSwitching, passedHeaders } from './ports/port-headers.ts'
import { innerHeaders, innerPath, portOf, toResponse } from './ports/ports.ts'
import { problem } from './problem.ts'
import { terminalShape } from './shapes.ts'
import type { Credential } from './streams/authenticated-streams.ts'
import { closeFrame, closeOf, endStreamSoon, FrameTrack, withStreamEnd } from './streams/stream-end.ts'

/** A request that wants another protocol, after Host and Origin were checked. */
export type Upgrade = {
  readonly request: IncomingMessage
  readonly socket: Duplex
  readonly head: Buffer
  readonly url: URL
  readonly parts: ServerParts
  /** `fromConsole`: the console's page may come in too. */
  readonly authenticate: (sandboxId: string, fromConsole?: boolean) => Promise<Principal>
}

/** Takes an upgrade over, or leaves it to the next by answering false. */
export type UpgradeTaker = (upgrade: Upgrade) => Promise<boolean>

const MESSAGE_BYTES = 1024 * 1024

/** Handles requests that upgrade to another protocol. */
export function upgradeHandler(parts: ServerParts, others: readonly UpgradeTaker[] = []) {
  const auth = authenticator(parts.keys, parts.supervisor)
  const sockets = new WebSocketServer({
    noServer: true,
    maxPayload: MESSAGE_BYTES,
    // The one with the secret is never echoed.
    handleProtocols: (offered) => (offered.has('ringfence') ? 'ringfence' : false),
  })
  const takers: readonly UpgradeTaker[] = [ptyTaker(sockets), sshTaker(sockets), portTaker, ...others]
  // All paths of a port's own name are the program's.
  const takersFor = (host: string): readonly UpgradeTaker[] => (isPortHost(host) ? others : takers)
  return async (request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> => {
    socket.on('error', () => socket.destroy())
    try {
      const host = request.headers.host ?? ''
      checkHost(host, parts.settings.hosts)
      checkOrigin(request.headers.origin, host, parts.settings.origins)
      const url = urlOf(request.url ?? '/')
      const authenticate = async (sandboxId: string, fromConsole = false): Promise<Principal> => {
        const headers = headersOf(request)
        // A socket is no reading: it counts as a change, so the page must say where it is from.
        let by: Credential = 'secret'
        const ask = async (): Promise<Principal> => {
          const person = fromConsole ? await consolePrincipal(parts.sessions, headers, 'POST') : undefined
          by = person ? 'session' : 'secret'
          return person ?? (await auth.principalOf(headers, sandboxId))
        }
        const principal = await ask()
        parts.requests.assert(principal.keyId)
        authorize(principal, 'exec', true)
        parts.streams.enter(by, headers, sandboxId, ask, socket)
        return principal
      }
      const upgrade = { request, socket, head, url, parts, authenticate }
      for (const take of takersFor(host)) if (await take(upgrade)) return
      throw new SandboxError('not-found', 'no such route to upgrade')
    } catch (error) {
      await refuse(socket, problem(counted(error, parts, request), 'upgrade', parts.log))
    }
  }
}

/** The error, or the refusal of an address that has tried too many wrong keys. */
function counted(error: unknown, parts: ServerParts, request: IncomingMessage): unknown {
  try {
    limitWrongKeys(error, parts, clientAddress(request))
    return error
  } catch (refusal) {
    return refusal
  }
}

/** PLATFORM: `//[` is a host to the parser, and a bad one; as a path of ours it is one that nobody has. */
function urlOf(target: string): URL {
  if (target.startsWith('/') && URL.canParse(`http://localhost${target}`))
    return new URL(`http://localhost${target}`)
  throw new SandboxError('invalid-input', 'the address of the request is not valid')
}

/** The headers of a Node request. */
export const headersOf = (request: IncomingMessage): Headers =>
  new Headers(
    Object.entries(request.headers).flatMap(([name, value]): [string, string][] =>
      value === undefined ? [] : [[name, Array.isArray(value) ? value.join(', ') : value]],
    ),
  )

/** An ordinary response to an upgrade request; the connection is closed after it. */
async function refuse(socket: Duplex, answer: Response): Promise<void> {
  const headers = [...answer.headers].filter(([name]) => !['connection', 'content-length'].includes(name))
  const lines = [...headers, ['connection', 'close']].map(([name, value]) => `${name}: ${value}`)
  socket.write(`HTTP/1.1 ${answer.status} Refused\r\n${lines.join('\r\n')}\r\n\r\n`)
  if (answer.body) for await (const chunk of bytesOf(answer.body)) if (!(await written(socket, chunk))) break
  socket.end()
}

/** Whether the bytes could be sent; waits until they are, so that a slow reader does not fill our memory. */
const written = (socket: Duplex, chunk: Uint8Array): Promise<boolean> =>
  new Promise((resolve) => socket.write(chunk, (error) => resolve(!error)))

/** `GET …/pty?cols=&rows=&command=`: bytes both ways; text messages are commands: `{"resize":{"cols","rows"}}`. */
function ptyTaker(sockets: WebSocketServer): UpgradeTaker {
  return async ({ request, socket, head, url, parts, authenticate }) => {
    const id = /^\/v1\/sandboxes\/([^/]+)\/pty$/.exec(url.pathname)?.[1]
    if (id === undefined) return false
    const principal = await authenticate(id, true)
    assertInteractive(parts.settings)
    const asked = ptyQuery.parse(Object.fromEntries(url.searchParams), '')
    const terminal = { cols: sizeOf(asked.cols, 80), rows: sizeOf(asked.rows, 24) }
    const command = asked.command ?? ['/bin/bash', '-l']
    const started = await parts.supervisor.exec(principal, id, { command, cwd: asked.cwd, terminal })
    sockets.handleUpgrade(request, socket, head, (client) => {
      parts.streams.onEnd(socket, (end) => client.close(...closeOf(end)))
      void converse(client, started)
    })
    return true
  }
}

/**
 * `GET …/ssh?session=`: the bytes of OpenSSH's `sshd -i`, which runs in the sandbox with the configuration that the client put
 * there. The program is judged and recorded like a shell; what the person types afterwards is not.
 */
function sshTaker(sockets: WebSocketServer): UpgradeTaker {
  return async ({ request, socket, head, url, parts, authenticate }) => {
    const id = /^\/v1\/sandboxes\/([^/]+)\/ssh$/.exec(url.pathname)?.[1]
    if (id === undefined) return false
    const principal = await authenticate(id)
    assertInteractive(parts.settings)
    const { session } = sshQuery.parse(Object.fromEntries(url.searchParams), '')
    if (!/^[0-9a-f]{32}$/.test(session)) throw new SandboxError('invalid-input', 'the session is not an id')
    const command = ['/usr/sbin/sshd', '-i', '-f', `/tmp/.ringfence-ssh-${session}/sshd_config`]
    const started = await parts.supervisor.exec(principal, id, { command, stdin: 'open', background: true })
    sockets.handleUpgrade(request, socket, head, (client) => {
      parts.streams.onEnd(socket, (end) => client.close(...closeOf(end)))
      void converse(client, started, 'stdout')
    })
    return true
  }
}
const sshQuery = object({ session: text({ max: 64 }) })

const ptyQuery = object({
  cols: optional(text({ max: 5 })),
  rows: optional(text({ max: 5 })),
  command: optional(text({ max: 65_536 })),
  cwd: optional(text({ max: 4096 })),
  token: optional(text({ max: 256 })),
})

const sizeOf = (value: string | undefined, otherwise: number): number =>
  value === undefined ? otherwise : size.parse(/^\d+$/.test(value) ? Number(value) : Number.NaN, 'size')
const size = number({ integer: true, min: 1, max: 1000 })

const messageShape = object({
  resize: optional(terminalShape),
  signal: optional(oneOf('SIGINT', 'SIGTERM', 'SIGKILL', 'SIGHUP')),
})

type Session = Started['session']

/** `only`: bytes of one stream, of which none may be missing. */
async function converse(client: WebSocket, { session, entry }: Started, only?: 'stdout'): Promise<void> {
  const stop = new AbortController()
  client.on('close', () => {
    stop.abort()
    if (session.state === 'running') session.signal('SIGHUP')
  })
  client.on('error', () => client.terminate())
  client.on('message', (data, binary) => {
    // SECURITY: who was told that they are out does not type any more.
    if (client.readyState !== client.OPEN) return
    void takeMessage(session, data as Buffer, binary).catch(() => client.close(1008, 'not understood'))
  })
  for await (const chunk of session.log.follow(0, stop.signal)) {
    if ('gap' in chunk && only) return client.close(1011, 'output was lost')
    if ('gap' in chunk || (only && chunk.stream !== only)) continue
    // Waits until the bytes are on their way, so that a slow reader holds the program and not our memory.
    await new Promise<void>((resolve) => client.send(chunk.data, { binary: true }, () => resolve()))
  }
  if (stop.signal.aborted) return
  const outcome = await session.result.then(
    (done) => done.outcome,
    () => undefined,
  )
  const end = await withStreamEnd(entry, outcome)
  const words = end ? closeOf(end) : ([1000, ''] as const)
  client.send(JSON.stringify({ end: outcome ?? { kind: 'failed' } }), () => client.close(...words))
}

async function takeMessage(session: Session, data: Buffer, binary: boolean): Promise<void> {
  if (binary) return session.write(data)
  const { resize, signal } = messageShape.parse(parseJson(data.toString('utf8')), '')
  if (resize) session.resize(resize)
  if (signal) session.signal(signal)
}

/** WebSockets of programs inside: the bytes are passed on as they are. */
const portTaker: UpgradeTaker = async (upgrade) => {
  const { url, parts, authenticate } = upgrade
  const [, id, port] = /^\/v1\/sandboxes\/([^/]+)\/ports\/([^/]+)(?:\/|$)/.exec(url.pathname) ?? []
  if (id === undefined) return false
  const principal = await authenticate(id)
  const entry = await parts.supervisor.use(principal, id)
  if (upgrade.request.headers.upgrade?.toLowerCase() === 'tcp') await joinTcp(upgrade, entry, portOf(port))
  else await joinPort(upgrade, entry, portOf(port))
  return true
}

/** `Upgrade: tcp`: a plain connection to a port, for programs that do not speak HTTP. */
async function joinTcp(upgrade: Upgrade, entry: LiveSandbox, port: number): Promise<void> {
  const { socket, head } = upgrade
  const inside = await entry
    .ready()
    .connect(port)
    .catch((cause: unknown) => {
      throw new SandboxError('not-found', `no program answers on port ${port} in this sandbox`, { cause })
    })
  inside.once('close', entry.begin())
  socket.once('close', () => inside.destroy())
  socket.write('HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: tcp\r\n\r\n')
  pass(upgrade, entry, inside, Buffer.alloc(0))
  if (head.length > 0) inside.write(head)
}

/**
 * Joins the caller's socket with a program inside, once the program agreed to another protocol. SECURITY: any other answer
 * is passed on as an ordinary one and the connection is closed: a program that had the raw socket after a 200 would receive
 * the next request that a proxy in front of us sends on it, with its keys.
 */
export async function joinPort(
  upgrade: Upgrade,
  entry: LiveSandbox,
  port: number,
  host?: string,
): Promise<void> {
  const { request, socket, head } = upgrade
  const inside = await entry.ready().connect(port)
  const end = entry.begin()
  inside.once('close', end)
  socket.once('close', () => inside.destroy())
  try {
    const answer = await askForUpgrade(request, inside, innerHeaders(request.headers, port, host))
    if ('response' in answer)
      return await refuse(socket, toResponse(answer.response, inside, request.headers.host))
    socket.write(switchingHead(answer.head, request.headers.host))
    pass(upgrade, entry, inside, answer.first)
    if (head.length > 0) inside.write(head)
  } catch (cause) {
    inside.destroy()
    throw new SandboxError('not-found', `no program answers on port ${port} in this sandbox`, { cause })
  }
}

type UpgradeAnswer =
  | { readonly response: IncomingMessage }
  | { readonly head: IncomingMessage; readonly first: Buffer }

function askForUpgrade(
  request: IncomingMessage,
  inside: Duplex,
  headers: OutgoingHttpHeaders,
): Promise<UpgradeAnswer> {
  const protocols = (request.headers['sec-websocket-protocol'] ?? '')
    .split(/,\s*/)
    // SECURITY: the one with the key, and the console's own, of which one holds half of a session.
    .filter((name) => name && name !== 'ringfence' && !/^(bearer|console)\./.test(name))
  return new Promise((resolve, reject) => {
    const outgoing = httpRequest({
      path: innerPath(request.url ?? '/'),
      headers: {
        ...headers,
        connection: 'Upgrade',
        upgrade: request.headers.upgrade ?? 'websocket',
        ...(protocols.length > 0 ? { 'sec-websocket-protocol': protocols.join(', ') } : {}),
      },
      createConnection: () => inside,
    })
    outgoing.on('upgrade', (head, _, first) => resolve({ head, first }))
    outgoing.on('response', (response) => resolve({ response }))
    outgoing.on('error', reject)
    outgoing.on('close', () => reject(new Error('closed')))
    outgoing.end()
  })
}

/** The program's 101 as the caller gets it: its own headers, but none that would act on our address. */
function switchingHead(head: IncomingMessage, host: string | undefined): string {
  const lines = passedHeaders(head, host, isKeptWhenSwitching).map(([name, value]) => `${name}: ${value}`)
  return ['HTTP/1.1 101 Switching Protocols', ...lines, '', ''].join('\r\n')
}

/** Bytes both ways, until one side goes or the caller is shown out. */
function pass({ request, socket, parts }: Upgrade, entry: LiveSandbox, inside: Duplex, first: Buffer): void {
  const frames = new FrameTrack()
  const isWebSocket = request.headers.upgrade?.toLowerCase() === 'websocket'
  const mayClose = (): boolean => isWebSocket && frames.isBetween
  const over = once((end?: StreamEnd): void => {
    inside.unpipe(socket)
    inside.destroy()
    // Where the program was in the middle of a frame, a word of ours would be taken for its.
    if (end && mayClose()) socket.end(closeFrame(end))
    else socket.end()
    setTimeout(() => socket.destroy(), LINGER_MS).unref()
  })
  parts.streams.onEnd(socket, over)
  for (const event of ['end', 'close', 'error'])
    inside.once(event, () => void (mayClose() ? endStreamSoon(entry).then(over) : over()))
  for (const event of ['close', 'error']) socket.once(event, () => over())
  frames.see(first)
  socket.write(first)
  inside.on('data', (chunk: Buffer) => frames.see(chunk))
  inside.pipe(socket, { end: false })
  socket.pipe(inside)
}

/** What was said last is on its way by then. */
const LINGER_MS = 100

function once<T>(work: (value?: T) => void): (value?: T) => void {
  let done = false
  return (value) => {
    if (!done) work(value)
    done = true
  }
}
