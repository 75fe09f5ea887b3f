import type { IncomingMessage } from 'node:http'
import type { Duplex } from 'node:stream'
import { type WebSocket, WebSocketServer } from 'ws'
import type { Cut } from '../model/cut.ts'
import { SandboxError } from '../model/errors.ts'
import { number, object, oneOf, optional, text } from '../model/shape.ts'
import type { Started } from '../supervisor/exec-desk.ts'
import type { Principal } from '../supervisor/keys.ts'
import type { Managed } from '../supervisor/managed.ts'
import { authenticator, authorize } from './auth.ts'
import { parseJson } from './body.ts'
import { consolePrincipal } from './console-auth.ts'
import { closeFrame, closeOf, cutAround, cutSoon, FrameTrack } from './cuts.ts'
import { checkHost, checkOrigin } from './guard.ts'
import type { ServerParts } from './parts.ts'
import { innerHeaders, innerPath, portOf } from './ports.ts'
import { problem } from './problem.ts'

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

export function upgradeHandler(parts: ServerParts, others: readonly UpgradeTaker[] = []) {
  const auth = authenticator(parts.keys, parts.supervisor)
  const sockets = new WebSocketServer({
    noServer: true,
    maxPayload: MESSAGE_BYTES,
    // The one with the secret is never echoed.
    handleProtocols: (offered) => (offered.has('ringfence') ? 'ringfence' : false),
  })
  const takers: readonly UpgradeTaker[] = [ptyTaker(sockets), portTaker, ...others]
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
        const ask = async (): Promise<Principal> => {
          const person = fromConsole ? await consolePrincipal(parts.sessions, headers, 'POST') : undefined
          return person ?? (await auth.principalOf(headers, sandboxId))
        }
        const principal = await ask()
        authorize(principal, 'exec', true)
        parts.presence.enter(headers, sandboxId, ask, socket)
        return principal
      }
      const upgrade = { request, socket, head, url, parts, authenticate }
      for (const take of takers) if (await take(upgrade)) return
      throw new SandboxError('not-found', 'there is nothing here to upgrade to')
    } catch (error) {
      await refuse(socket, problem(error, 'upgrade', parts.log))
    }
  }
}

/** PLATFORM: `//[` is a host to the parser, and a bad one; as a path of ours it is one that nobody has. */
function urlOf(target: string): URL {
  if (target.startsWith('/') && URL.canParse(`http://localhost${target}`))
    return new URL(`http://localhost${target}`)
  throw new SandboxError('invalid-input', 'the address of the request is not valid')
}

const headersOf = (request: IncomingMessage): Headers =>
  new Headers(
    Object.entries(request.headers).flatMap(([name, value]): [string, string][] =>
      value === undefined ? [] : [[name, Array.isArray(value) ? value.join(', ') : value]],
    ),
  )

async function refuse(socket: Duplex, answer: Response): Promise<void> {
  const body = await answer.text()
  const lines = [
    `HTTP/1.1 ${answer.status} Refused`,
    'connection: close',
    'content-type: application/json',
    `content-length: ${Buffer.byteLength(body)}`,
  ]
  socket.end(`${lines.join('\r\n')}\r\n\r\n${body}`)
}

/** `GET …/pty?cols=&rows=&command=`: bytes both ways; text messages are commands: `{"resize":{"cols","rows"}}`. */
function ptyTaker(sockets: WebSocketServer): UpgradeTaker {
  return async ({ request, socket, head, url, parts, authenticate }) => {
    const id = /^\/v1\/sandboxes\/([^/]+)\/pty$/.exec(url.pathname)?.[1]
    if (id === undefined) return false
    const principal = await authenticate(id, true)
    if (!parts.settings.allowInteractive())
      throw new SandboxError('interactive-disabled', 'interactive sessions are switched off', {
        hint: 'an operator can set `[policy] allow_interactive = true`',
      })
    const asked = ptyQuery.parse(Object.fromEntries(url.searchParams), '')
    const terminal = { cols: sizeOf(asked.cols, 80), rows: sizeOf(asked.rows, 24) }
    const command = asked.command ?? ['/bin/bash', '-l']
    const started = await parts.supervisor.exec(principal, id, { command, cwd: asked.cwd, terminal })
    sockets.handleUpgrade(request, socket, head, (client) => {
      parts.presence.onCut(socket, (cut) => client.close(...closeOf(cut)))
      void converse(client, started)
    })
    return true
  }
}

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
  resize: optional(object({ cols: size, rows: size })),
  signal: optional(oneOf('SIGINT', 'SIGTERM', 'SIGKILL', 'SIGHUP')),
})

type Session = Started['session']

async function converse(client: WebSocket, { session, entry }: Started): Promise<void> {
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
    if ('gap' in chunk) continue
    // Waits until the bytes are on their way, so that a slow reader holds the program and not our memory.
    await new Promise<void>((resolve) => client.send(chunk.data, { binary: true }, () => resolve()))
  }
  if (stop.signal.aborted) return
  const outcome = await session.result.then(
    (done) => done.outcome,
    () => undefined,
  )
  const cut = await cutAround(entry, outcome)
  const words = cut ? closeOf(cut) : ([1000, ''] as const)
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
  await joinPort(upgrade, await parts.supervisor.use(principal, id), portOf(port))
  return true
}

/** Joins the caller's socket with a program inside. */
export async function joinPort(
  { request, socket, head, parts }: Upgrade,
  entry: Managed,
  number: number,
): Promise<void> {
  const inside = await entry.ready().connect(number)
  const end = entry.begin()
  const frames = new FrameTrack()
  inside.on('data', (chunk: Buffer) => frames.see(chunk))
  const over = once((cut?: Cut): void => {
    end()
    inside.unpipe(socket)
    inside.destroy()
    // Where the program was in the middle of a frame, a word of ours would be taken for its.
    if (cut && frames.isBetween) socket.end(closeFrame(cut))
    else socket.end()
    setTimeout(() => socket.destroy(), LINGER_MS).unref()
  })
  parts.presence.onCut(socket, over)
  for (const event of ['end', 'close', 'error'])
    inside.once(event, () => void (frames.isBetween ? cutSoon(entry).then(over) : over()))
  for (const event of ['close', 'error']) socket.once(event, () => over())
  const protocols = (request.headers['sec-websocket-protocol'] ?? '')
    .split(/,\s*/)
    .filter((name) => name && !name.startsWith('bearer.'))
  const headers = {
    ...innerHeaders(request.headers, number),
    connection: 'Upgrade',
    upgrade: request.headers.upgrade ?? 'websocket',
    ...(protocols.length > 0 ? { 'sec-websocket-protocol': protocols.join(', ') } : {}),
  }
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${String(value)}`)
  inside.write(`GET ${innerPath(request.url ?? '/')} HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n`)
  if (head.length > 0) inside.write(head)
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
