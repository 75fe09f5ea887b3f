import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

/**
 * FAKE: plays Anthropic's side of a self-hosted environment (work queue and session events) on the loopback, because the
 * service cannot exist here. The worker under test uses the real `@anthropic-ai/sdk`.
 */

type Call = { readonly name: string; readonly input: object }
type ToolResult = {
  readonly tool_use_id: string
  readonly is_error: boolean
  readonly content: readonly { readonly text?: string }[]
}

/** One scripted session: its tool calls, and what came back. */
export class FakeSession {
  readonly id: string
  readonly calls: readonly Call[]
  readonly results: ToolResult[] = []
  /** More fields of the work item, from the other side. */
  readonly more: object
  readonly tokens = new Set<string>()
  heartbeats = 0
  stopped = false
  state = 'active'
  #stream: ServerResponse | undefined

  constructor(id: string, calls: readonly Call[], more: object = {}) {
    this.id = id
    this.calls = calls
    this.more = more
  }

  attach(stream: ServerResponse): void {
    this.#stream = stream
    stream.writeHead(200, { 'content-type': 'text/event-stream' })
    stream.flushHeaders()
    setTimeout(() => this.next(), 50)
  }

  /** Cuts the stream, as a network does. */
  cut(): void {
    this.#stream?.destroy()
  }

  take(events: readonly (ToolResult & { readonly type: string })[]): void {
    this.results.push(...events.filter(({ type }) => type === 'user.tool_result'))
    this.next()
  }

  next(): void {
    const call = this.calls[this.results.length]
    this.send(
      call
        ? {
            type: 'agent.tool_use',
            id: `tu_${this.results.length}`,
            processed_at: new Date().toISOString(),
            ...call,
          }
        : { type: 'session.status_terminated', id: 'ev_end', processed_at: new Date().toISOString() },
    )
  }

  send(event: { readonly type: string; readonly [field: string]: unknown }): void {
    this.#stream?.write(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`)
  }

  text(index: number): string {
    return this.results[index]?.content.map(({ text }) => text ?? '').join('\n') ?? ''
  }

  get isOver(): boolean {
    return this.stopped
  }
}

/** The environment; `hand` queues a session. */
export class FakeEnvironment {
  readonly #queue: FakeSession[] = []
  readonly #sessions = new Map<string, FakeSession>()
  readonly #server = createServer((request, response) => void this.#answer(request, response))
  readonly keys = new Set<string>()
  polls = 0
  port = 0

  async listen(): Promise<string> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve))
    this.port = (this.#server.address() as AddressInfo).port
    return `http://127.0.0.1:${this.port}`
  }

  hand(session: FakeSession): FakeSession {
    this.#queue.push(session)
    this.#sessions.set(session.id, session)
    return session
  }

  get waiting(): number {
    return this.#queue.length
  }

  close(): void {
    this.#server.closeAllConnections()
    this.#server.close()
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { pathname } = new URL(request.url ?? '/', 'http://x')
    const token = String(request.headers.authorization)
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const body = chunks.length > 0 ? JSON.parse(Buffer.concat(chunks).toString()) : {}
    const json = (value: unknown, status = 200): void => {
      response.writeHead(status, { 'content-type': 'application/json' })
      response.end(JSON.stringify(value))
    }
    const [, work, verb] = /\/work\/([^/]+)(?:\/(\w+))?$/.exec(pathname) ?? []
    if (work === 'poll') {
      this.polls++
      this.keys.add(token)
      return json(this.#work(this.#queue.shift()))
    }
    if (work !== undefined) return void this.#lease(work, verb ?? '', token, json)
    const [, id = '', stream] = /\/v1\/sessions\/([^/]+)\/events(\/stream)?$/.exec(pathname) ?? []
    const session = this.#sessions.get(decodeURIComponent(id))
    if (!session) return json({ type: 'error', error: { type: 'not_found_error', message: 'no' } }, 404)
    session.tokens.add(token)
    if (stream) return session.attach(response)
    if (request.method === 'GET') return json({ data: [], next_page: null, has_more: false })
    session.take(body.events)
    json({ data: [] })
  }

  #work(session: FakeSession | undefined): unknown {
    if (!session) return null
    return {
      type: 'work',
      id: `work_${session.id}`,
      environment_id: 'env_test',
      data: { type: 'session', id: session.id },
      state: 'queued',
      metadata: {},
      secret: null,
      created_at: new Date().toISOString(),
      ...session.more,
    }
  }

  #lease(
    work: string,
    verb: string,
    token: string,
    json: (value: unknown, status?: number) => unknown,
  ): unknown {
    const session = this.#sessions.get(decodeURIComponent(work).replace(/^work_/, ''))
    if (!session) return json({}, 404)
    if (verb !== 'ack') session.tokens.add(token)
    if (verb === 'stop') session.stopped = true
    if (verb !== 'heartbeat') return json(this.#work(session))
    session.heartbeats++
    if (session.state === 'taken') return json({ type: 'error', error: { type: 'x', message: 'x' } }, 412)
    return json({
      type: 'work_heartbeat',
      last_heartbeat: new Date().toISOString(),
      lease_extended: true,
      state: session.state,
      ttl_seconds: 2,
    })
  }
}
