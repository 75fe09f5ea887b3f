import { SandboxError } from '../model/errors.ts'
import { wholeOf } from '../model/files/whole.ts'
import { errorOfStreamEnd, type Incoming, readEvents, streamEndIn } from './sse.ts'
import { fromProblem, type Transport } from './transport.ts'
import type {
  Applied,
  ChangeDiff,
  Changes,
  ExecEnd,
  ExecEvent,
  ExecOptions,
  ExecResult,
  ExecView,
  FileChange,
  FileInfo,
  NetworkChange,
  Page,
  Problem,
  SandboxInfo,
  SandboxMetrics,
  SnapshotInfo,
  TerminalSize,
  TrailRecord,
} from './types.ts'

const REATTACH_TRIES = 5

const commandOf = (command: string | readonly string[]) =>
  typeof command === 'string' ? { command } : { argv: command }

/** One sandbox on a server. */
export class RemoteSandbox {
  readonly id: string
  readonly files: RemoteFiles
  readonly #transport: Transport
  #info: SandboxInfo

  constructor(transport: Transport, info: SandboxInfo) {
    this.#transport = transport
    this.#info = info
    this.id = info.id
    this.files = new RemoteFiles(transport, `/v1/sandboxes/${info.id}/files`)
  }

  /** As the server described it last. */
  get info(): SandboxInfo {
    return this.#info
  }

  async refresh(): Promise<SandboxInfo> {
    this.#info = await this.#transport.json({ method: 'GET', path: this.#path(), repeatable: true })
    return this.#info
  }

  /** Runs a shell line (text) or a program (list) and waits for its end. */
  exec(command: string | readonly string[], { signal, ...options }: ExecOptions = {}): Promise<ExecResult> {
    const json = { ...commandOf(command), ...options }
    return this.#transport.json({ method: 'POST', path: this.#path('/exec'), json, signal })
  }

  /** Runs a command and yields what it prints. A broken connection is taken up again where it broke. */
  async *stream(
    command: string | readonly string[],
    { signal, ...options }: ExecOptions = {},
  ): AsyncGenerator<ExecEvent, void> {
    const response = await this.#transport.send({
      method: 'POST',
      path: this.#path('/exec'),
      json: { ...commandOf(command), ...options },
      headers: { accept: 'text/event-stream' },
      signal,
    })
    yield* this.#follow(response, signal)
  }

  /** The events of a command that runs or ran, from any point on. */
  async *attach(execId: string, after = 0, signal?: AbortSignal): AsyncGenerator<ExecEvent, void> {
    yield* this.#follow(await this.#reopen(execId, after, signal), signal)
  }

  /** A command's result so far. */
  execResult(execId: string): Promise<ExecResult> {
    return this.#transport.json({ method: 'GET', path: this.#path(`/execs/${execId}`), repeatable: true })
  }

  /** Writes to the standard input of a command that was started with `stdin_open`. */
  async write(execId: string, data: string | Uint8Array, eof = false): Promise<void> {
    const given = typeof data === 'string' ? { data } : { data_base64: base64Of(data) }
    await this.#transport.json({
      method: 'POST',
      path: this.#path('/stdin'),
      json: { exec_id: execId, ...given, eof },
    })
  }

  /** The commands that run or ran, newest first. */
  execs(): Promise<Page<ExecView>> {
    return this.#transport.json({ method: 'GET', path: this.#path('/execs'), repeatable: true })
  }

  /** What the sandbox is doing and using now. */
  metrics(): Promise<SandboxMetrics> {
    return this.#transport.json({ method: 'GET', path: this.#path('/metrics'), repeatable: true })
  }

  async signal(execId: string, signal = 'SIGTERM'): Promise<void> {
    await this.#transport.json({
      method: 'POST',
      path: this.#path('/signal'),
      json: { exec_id: execId, signal },
    })
  }

  /** Changes the size of the terminal of a command that was started with `terminal`. */
  async resize(execId: string, terminal: TerminalSize): Promise<void> {
    await this.#transport.json({
      method: 'POST',
      path: this.#path('/resize'),
      json: { exec_id: execId, terminal },
    })
  }

  pause(): Promise<SandboxInfo> {
    return this.#change('POST', '/pause', {})
  }

  resume(): Promise<SandboxInfo> {
    return this.#change('POST', '/resume', {})
  }

  /** Keeps the files of its private directories; another sandbox can start from them as its `template`. */
  snapshot(name?: string): Promise<SnapshotInfo> {
    return this.#transport.json({ method: 'POST', path: this.#path('/snapshot'), json: name ? { name } : {} })
  }

  /** A new sandbox of the same spec with the same files; processes stay where they are. */
  fork(): Promise<SandboxInfo> {
    return this.#transport.json({ method: 'POST', path: this.#path('/fork'), json: {} })
  }

  /** Replaces the deadline, counted from now; 0 means never. */
  setTimeout(timeoutMs: number, onlyLonger = false): Promise<SandboxInfo> {
    return this.#change('POST', '/timeout', { timeout_ms: timeoutMs, only_longer: onlyLonger })
  }

  /**
   * Keeps the sandbox for at least this long from now; a later deadline stays.
   *
   *     await sandbox.extendTimeout(600_000)
   */
  extendTimeout(timeoutMs: number): Promise<SandboxInfo> {
    return this.setTimeout(timeoutMs, true)
  }

  /** The answer says of each host whether the policy allows it: to be on the list is not to be reached. */
  setAllowHosts(hosts: readonly string[]): Promise<NetworkChange> {
    return this.#change('PUT', '/network', { allow_hosts: hosts })
  }

  /** What a reviewed sandbox changed; nothing of it is real yet. */
  changes(): Promise<Changes> {
    return this.#transport.json({ method: 'GET', path: this.#path('/review'), repeatable: true })
  }

  diff(path: string): Promise<ChangeDiff> {
    const query = { path }
    return this.#transport.json({ method: 'GET', path: this.#path('/review/diff'), query, repeatable: true })
  }

  /** Makes changes real: all of them, those below some paths, or exactly the versions that were seen. */
  apply(
    chosen: { readonly paths?: readonly string[]; readonly seen?: Readonly<Record<string, string>> } = {},
  ): Promise<Applied> {
    return this.#transport.json({ method: 'POST', path: this.#path('/review/apply'), json: chosen })
  }

  /** Forgets the changes of a sandbox that has ended. */
  async drop(): Promise<void> {
    await this.#transport.json({ method: 'POST', path: this.#path('/review/drop'), json: {} })
  }

  logs(after?: number): Promise<Page<TrailRecord>> {
    return this.#transport.json({
      method: 'GET',
      path: this.#path('/logs'),
      query: { after },
      repeatable: true,
    })
  }

  /** Where a port inside is reached; every request needs the key. */
  portUrl(port: number, path = '/'): string {
    return `${this.#transport.url}${this.#path(`/ports/${port}`)}${path}`
  }

  /** Ends it. Twice is harmless. */
  async close(): Promise<SandboxInfo> {
    this.#info = await this.#transport.json({ method: 'DELETE', path: this.#path(), repeatable: true })
    return this.#info
  }

  async #change<T extends SandboxInfo>(method: 'POST' | 'PUT', path: string, json: unknown): Promise<T> {
    const info = await this.#transport.json<T>({ method, path: this.#path(path), json })
    this.#info = info
    return info
  }

  #path(rest = ''): string {
    return `/v1/sandboxes/${this.id}${rest}`
  }

  #reopen(execId: string, after: number, signal?: AbortSignal): Promise<Response> {
    return this.#transport.send({
      method: 'GET',
      path: this.#path(`/execs/${execId}`),
      query: { after },
      headers: { accept: 'text/event-stream' },
      repeatable: true,
      signal,
    })
  }

  async *#follow(first: Response, signal?: AbortSignal): AsyncGenerator<ExecEvent, void> {
    let response = first
    let execId: string | undefined
    let last = 0
    for (let tries = 0; tries <= REATTACH_TRIES && !signal?.aborted; tries++) {
      try {
        for await (const incoming of readEvents(response)) {
          last = incoming.id ?? last
          const cut = streamEndIn(incoming)
          if (cut?.reason === 'unsure') break
          if (cut) throw errorOfStreamEnd(cut)
          const event = eventOf(incoming)
          if (event.type === 'start') {
            const again = execId !== undefined
            execId = event.exec_id
            if (again) continue
          }
          yield event
          if (event.type === 'end') return
        }
      } catch (error) {
        if (error instanceof SandboxError || execId === undefined) throw error
      }
      if (execId === undefined) break
      response = await this.#reopen(execId, last, signal)
    }
    if (!signal?.aborted)
      throw new SandboxError('unreachable', 'the connection broke before the command ended')
  }
}

function eventOf({ event, data }: Incoming): ExecEvent {
  const value = JSON.parse(data) as unknown
  switch (event) {
    case 'start':
      return { type: 'start', ...(value as { exec_id: string; pid: number }) }
    case 'stdout':
    case 'stderr':
      return { type: event, data: bytesOf(value as string) }
    case 'approval':
      return { type: 'approval', ...(value as { id: string }) }
    case 'gap':
      return { type: 'gap' }
    case 'end':
      return { type: 'end', result: value as ExecEnd }
    default:
      throw fromProblem(value as Partial<Problem>)
  }
}

function base64Of(bytes: Uint8Array): string {
  let text = ''
  for (const byte of bytes) text += String.fromCharCode(byte)
  return btoa(text)
}

function bytesOf(base64: string): Uint8Array {
  const text = atob(base64)
  const bytes = new Uint8Array(text.length)
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at)
  return bytes
}

/** PLATFORM: not every browser walks a stream with `for await`. */
async function* piecesOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
  const reader = stream.getReader()
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value
  } finally {
    await reader.cancel()
  }
}

/** A part of a file. */
type FileRange = { readonly offset?: number; readonly length?: number }

/** Files as the sandbox sees them. */
export class RemoteFiles {
  readonly #transport: Transport
  readonly #path: string

  constructor(transport: Transport, path: string) {
    this.#transport = transport
    this.#path = path
  }

  /** At most 64 MiB; `length` bytes from `offset` if a range is given. */
  async read(path: string, range: FileRange = {}): Promise<Uint8Array> {
    return (await wholeOf(`\`${path}\``, piecesOf(await this.readStream(path, range)), range.length)).slice()
  }

  /** For files that should not be whole in memory. */
  async readStream(path: string, range: FileRange = {}): Promise<ReadableStream<Uint8Array>> {
    const query = { path, ...range }
    const { body } = await this.#transport.send({ method: 'GET', path: this.#path, query, repeatable: true })
    return body ?? new ReadableStream()
  }

  write(path: string, data: Uint8Array | string | ReadableStream<Uint8Array>): Promise<FileInfo> {
    const bytes = typeof data === 'string' ? new TextEncoder().encode(data) : data
    return this.#transport.json({
      method: 'PUT',
      path: this.#path,
      query: { path },
      bytes,
      headers: { 'content-type': 'application/octet-stream' },
      repeatable: !(bytes instanceof ReadableStream),
    })
  }

  async list(path: string, depth?: number): Promise<readonly FileInfo[]> {
    const query = { path, depth }
    const page = await this.#transport.json<Page<FileInfo>>({
      method: 'GET',
      path: `${this.#path}/list`,
      query,
      repeatable: true,
    })
    return page.items
  }

  stat(path: string): Promise<FileInfo> {
    return this.#transport.json({
      method: 'GET',
      path: `${this.#path}/stat`,
      query: { path },
      repeatable: true,
    })
  }

  async remove(path: string): Promise<void> {
    await this.#transport.json({ method: 'DELETE', path: this.#path, query: { path } })
  }

  /** Changes as they happen, until the signal or the sandbox's end; throws when the server ends it for another reason. */
  async *watch(
    path: string,
    options: { readonly recursive?: boolean; readonly signal?: AbortSignal } = {},
  ): AsyncGenerator<FileChange, void> {
    const response = await this.#transport.send({
      method: 'GET',
      path: `${this.#path}/watch`,
      query: { path, recursive: options.recursive },
      signal: options.signal,
    })
    for await (const incoming of readEvents(response)) {
      const cut = streamEndIn(incoming)
      if (cut && cut.reason !== 'sandbox-ended') throw errorOfStreamEnd(cut)
      if (incoming.event === 'change') yield JSON.parse(incoming.data) as FileChange
    }
  }
}
