import { randomUUID } from 'node:crypto'
import { SandboxError } from '../../model/errors.ts'
import { exceededBy } from '../../model/json.ts'
import type { AgentSession } from '../session.ts'
import { type ExecServerOptions, ExecServerSession } from './exec-session.ts'
import type { Params } from './params.ts'

/** The JSON-RPC side of Codex's exec-server: connections, sessions that outlive them, and errors. */

/** How long a session waits for its client after the connection is lost. */
const RESUME_MS = 60_000
const MAX_SESSIONS = 32

/** One connection of a client. */
export type ExecServerConnection = {
  /** Resolves when the text is on its way, so that a slow reader does not fill our memory. */
  readonly send: (text: string) => Promise<void>
  readonly close: () => void
}

type Held = {
  readonly session: ExecServerSession
  connection: ExecServerConnection | undefined
  timer?: NodeJS.Timeout | undefined
}

/** Serves Codex's exec-server protocol; every session has a sandbox of its own. */
export class CodexExecServer {
  readonly #open: () => AgentSession
  readonly #options: ExecServerOptions
  readonly #held = new Map<string, Held>()

  constructor(open: () => AgentSession, options: ExecServerOptions = {}) {
    this.#open = open
    this.#options = options
  }

  /** Takes a connection; the result gets its messages and its end. */
  connect(connection: ExecServerConnection): {
    readonly message: (text: string) => void
    readonly closed: () => void
  } {
    let id: string | undefined
    const answer = async (text: string): Promise<void> => {
      const request = parsed(text)
      if (!request)
        return connection.send(JSON.stringify(failed(-1, -32_600, 'the message is not a JSON-RPC request')))
      if (request.id === undefined) return
      try {
        if (request.method === 'initialize') {
          if (id !== undefined)
            throw new SandboxError('invalid-input', 'this connection is initialized already')
          id = this.#initialize(connection, request.params)
          return connection.send(JSON.stringify({ id: request.id, result: { sessionId: id } }))
        }
        const held = id === undefined ? undefined : this.#held.get(id)
        if (held?.connection !== connection)
          throw new SandboxError('invalid-input', 'send `initialize` first')
        await held.session.call({ ...request, size: text.length }, (result) =>
          connection.send(JSON.stringify({ id: request.id, result })),
        )
      } catch (error) {
        await connection.send(JSON.stringify(errorOf(request.id, error)))
      }
    }
    return {
      message: (text) => void answer(text),
      closed: () => {
        if (id !== undefined) this.#lost(id, connection)
      },
    }
  }

  #initialize(connection: ExecServerConnection, { resumeSessionId }: Params): string {
    if (typeof resumeSessionId === 'string') {
      const held = this.#held.get(resumeSessionId)
      if (!held) throw new SandboxError('not-found', 'no such session to resume')
      clearTimeout(held.timer)
      // The older connection is gone or half open; two must never share a session.
      held.connection?.close()
      this.#attach(held, connection)
      return resumeSessionId
    }
    if (this.#held.size >= MAX_SESSIONS)
      throw new SandboxError('resource-limit-exceeded', `${MAX_SESSIONS} sessions are already open`)
    const id = randomUUID()
    const held: Held = { session: new ExecServerSession(this.#open(), this.#options), connection }
    this.#held.set(id, held)
    this.#attach(held, connection)
    return id
  }

  #attach(held: Held, connection: ExecServerConnection): void {
    held.connection = connection
    held.session.attach((method, params) => connection.send(JSON.stringify({ method, params })))
  }

  #lost(id: string, connection: ExecServerConnection): void {
    const held = this.#held.get(id)
    if (held?.connection !== connection) return
    held.connection = undefined
    held.session.attach(() => {})
    held.timer = setTimeout(() => void this.#end(id), RESUME_MS)
  }

  async #end(id: string): Promise<void> {
    const held = this.#held.get(id)
    this.#held.delete(id)
    clearTimeout(held?.timer)
    await held?.session.close()
  }

  /** Ends all sessions and their sandboxes. */
  async close(): Promise<void> {
    await Promise.all([...this.#held.keys()].map((id) => this.#end(id)))
  }
}

type Request = { readonly id?: string | number; readonly method: string; readonly params: Params }

/** SECURITY: the size of a message is limited, and this the size of what is made of it. */
const LIMITS = { depth: 64, values: 100_000 }

function parsed(text: string): Request | undefined {
  if (exceededBy(text, LIMITS)) return undefined
  try {
    const value = JSON.parse(text) as { id?: unknown; method?: unknown; params?: unknown }
    if (typeof value?.method !== 'string') return undefined
    const params = typeof value.params === 'object' && value.params !== null ? (value.params as Params) : {}
    const { id } = value
    return {
      method: value.method,
      params,
      ...(typeof id === 'string' || typeof id === 'number' ? { id } : {}),
    }
  } catch {
    return undefined
  }
}

const failed = (id: string | number, code: number, message: string) => ({ id, error: { code, message } })

/** The codes that Codex's client tells apart: not found, a mistake of the caller, and everything else. */
function errorOf(id: string | number, error: unknown): object {
  if (!(error instanceof SandboxError)) return failed(id, -32_603, 'the request failed unexpectedly')
  const message = `${error.message}${error.hint ? ` (${error.hint})` : ''}`
  if (error.code === 'file-not-found') return failed(id, -32_004, message)
  if (error.code === 'not-found') return failed(id, -32_601, message)
  return failed(id, error.code === 'internal' ? -32_603 : -32_600, message)
}
