import { WebSocket } from 'ws'

type Message = {
  readonly id?: number
  readonly method?: string
  readonly result?: Readonly<Record<string, unknown>>
  readonly error?: { readonly code: number; readonly message: string }
  readonly params?: Readonly<Record<string, unknown>>
}

/** The protocol as written down, without Codex. */
export class ExecServerClient {
  readonly seen: Message[] = []
  readonly #socket: WebSocket
  #next = 1
  readonly #waiting = new Map<number, (message: Message) => void>()

  constructor(socket: WebSocket) {
    this.#socket = socket
    socket.on('message', (data) => {
      const message = JSON.parse(String(data)) as Message
      if (message.id === undefined) this.seen.push(message)
      else this.#waiting.get(message.id)?.(message)
    })
  }

  static async open(at: string, options = {}): Promise<ExecServerClient> {
    const socket = new WebSocket(at, options)
    await new Promise<void>((resolve, reject) => {
      socket.once('open', () => resolve())
      socket.once('error', reject)
    })
    return new ExecServerClient(socket)
  }

  ask(method: string, params: object = {}): Promise<Message> {
    const id = this.#next++
    const answered = new Promise<Message>((resolve) => this.#waiting.set(id, resolve))
    this.#socket.send(JSON.stringify({ id, method, params }))
    return answered
  }

  async result(method: string, params: object = {}): Promise<Readonly<Record<string, unknown>>> {
    const { result, error } = await this.ask(method, params)
    if (!result) throw new Error(JSON.stringify(error))
    return result
  }

  /** Resolves when the connection has ended. */
  get ended(): Promise<unknown> {
    return new Promise((resolve) => this.#socket.once('close', resolve))
  }

  /** Reads nothing until the result is called. */
  pause(): () => void {
    this.#socket.pause()
    return () => this.#socket.resume()
  }

  close(): void {
    this.#socket.close()
  }
}
