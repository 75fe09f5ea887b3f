import { SandboxError } from '../../model/errors.ts'
import { isWithin } from '../../model/files/path.ts'
import { MAX_ENTRIES } from '../../model/files/whole.ts'
import type { AgentSession } from '../session.ts'
import type {
  Approver,
  RunningToolCommand,
  StartOptions,
  ToolSandbox,
  ToolSandboxEntry,
} from '../tool-sandbox.ts'
import { startRequest } from './http-request.ts'
import { count, type Params, text } from './params.ts'
import { ExecServerProcess, type Notify, type OutputAccount, pathOf, uriOf } from './processes.ts'
import { RequestLimits } from './request-limits.ts'

/**
 * One session of Codex's exec-server protocol: an unmodified Codex runs its commands and file operations in a sandbox of
 * ours. SECURITY: what the client sends about sandboxes, roots and networks is ignored; only our policy and plan decide.
 */

const MAX_PROCESSES = 64
const MAX_HANDLES = 64
/** A request whose response is kept until its end counts as several. */
const MAX_REQUESTS = 32
const WHOLE_REQUEST = 4
const MAX_FILE = 64 * 1024 * 1024
const READ_BYTES = 1024 * 1024
const MAX_WAIT_MS = 60_000

/** Variables that belong to the client's machine and mean nothing, or something else, in the sandbox. */
const NOT_PASSED =
  /^(PATH|HOME|PWD|OLDPWD|SHELL|USER|LOGNAME|TMPDIR|TMP|TEMP|XDG_.*|DISPLAY|WAYLAND_DISPLAY|SSH_.*|(ALL|HTTPS?|NO|FTP)_PROXY|CODEX_.*|.*_(TOKEN|KEY|SECRET|PASSWORD))$/i

/** How the sessions of an exec-server differ: who approves commands, where output is counted, the largest whole file. */
export type ExecServerOptions = {
  readonly approver?: Approver | undefined
  readonly output?: OutputAccount
  readonly maxFile?: number
}

type OpenFile = { readonly path: string; readonly size: number }

/** The processes and open files of one client, in one sandbox. */
export class ExecServerSession {
  readonly #session: AgentSession
  readonly #options: ExecServerOptions
  readonly #processes = new Map<string, ExecServerProcess>()
  readonly #handles = new Map<string, OpenFile>()
  #notify: Notify = () => {}
  #requests = 0
  readonly #limits = new RequestLimits()

  constructor(session: AgentSession, options: ExecServerOptions = {}) {
    this.#session = session
    this.#options = options
  }

  get maxFile(): number {
    return this.#options.maxFile ?? MAX_FILE
  }

  /** Sends notifications to this connection from now on. */
  attach(notify: Notify): void {
    this.#notify = notify
  }

  /** Answers one request of this size. SECURITY: of the answers with content only one is in memory, until it was sent. */
  async call(
    { method, params, size }: { readonly method: string; readonly params: Params; readonly size: number },
    send: (result: object) => Promise<void>,
  ): Promise<void> {
    const handler = Object.hasOwn(METHODS, method) ? METHODS[method] : undefined
    if (!handler) throw new SandboxError('not-found', `no method \`${method.slice(0, 64)}\``)
    const answered = this.#limits.admit(size)
    try {
      if (method === 'process/read') await this.#news(params)
      const answer = async (): Promise<void> => send(await handler(this, params))
      await (CONTENT.has(method) ? this.#limits.inTurn(answer) : answer())
    } finally {
      answered()
    }
  }

  async #news(params: Params): Promise<void> {
    const waitMs = Math.min(count(params, 'waitMs', 0), MAX_WAIT_MS)
    await this.process(params)?.news(count(params, 'afterSeq', 0), waitMs)
  }

  close(): Promise<void> {
    for (const process of this.#processes.values()) process.forget()
    return this.#session.close()
  }

  sandbox(): Promise<ToolSandbox> {
    return this.#session.sandbox()
  }

  get session(): AgentSession {
    return this.#session
  }

  async start(params: Params): Promise<object> {
    const processId = text(params, 'processId')
    const argv = params.argv
    if (!Array.isArray(argv) || argv.length === 0 || !argv.every((word) => typeof word === 'string'))
      throw new SandboxError('no-command', '`argv` must be a list of words')
    if (this.#processes.has(processId))
      throw new SandboxError('conflict', `there is already a process \`${processId.slice(0, 64)}\``)
    const asked = pathOf(text(params, 'cwd'))
    this.#makeRoom()
    const tty = params.tty === true
    const process = new ExecServerProcess(
      processId,
      tty,
      (name, body) => this.#notify(name, body),
      this.#options.output,
    )
    this.#processes.set(processId, process)
    try {
      const cwd = await this.#directory(asked)
      const sandbox = await this.#session.sandbox()
      const options = {
        cwd,
        env: passedEnvironment(params.env),
        stdinOpen: tty || params.pipeStdin === true,
        approved: this.#options.approver,
        output: process.output.bind(process),
      }
      process.follow(await withTerminal(sandbox, argv as readonly string[], options, tty))
    } catch (error) {
      // The answer to the request must come before the notifications about the process.
      setImmediate(() => process.refuse(error))
    }
    return { processId, sandboxType: 'linuxSeccomp' }
  }

  async request(params: Params): Promise<object> {
    const cost = params.streamResponse === true ? 1 : WHOLE_REQUEST
    if (this.#requests + cost > MAX_REQUESTS)
      throw new SandboxError('resource-limit-exceeded', 'too many HTTP requests are already running')
    // Counted before it has started, so that a burst of requests counts too.
    this.#requests += cost
    try {
      const sandbox = await this.#session.sandbox()
      const notify: Notify = (name, body) => this.#notify(name, body)
      const { approver } = this.#options
      const request = await startRequest({ sandbox, approver, notify }, params)
      void request.ended.finally(() => {
        this.#requests -= cost
      })
      return request.answer
    } catch (error) {
      this.#requests -= cost
      throw error
    }
  }

  /** A directory that the sandbox does not have would fail every command, so the workspace takes its place. */
  async #directory(path: string): Promise<string> {
    const { workspace, files } = await this.#session.sandbox()
    if (isWithin(path, workspace)) return path
    const found = await files.stat(path).catch(() => undefined)
    return found?.kind === 'dir' ? path : workspace
  }

  #makeRoom(): void {
    for (const [id, process] of this.#processes) {
      if (this.#processes.size < MAX_PROCESSES) return
      if (!process.isOver) continue
      process.forget()
      this.#processes.delete(id)
    }
    if (this.#processes.size >= MAX_PROCESSES)
      throw new SandboxError('resource-limit-exceeded', `${MAX_PROCESSES} processes are already running`)
  }

  process(params: Params): ExecServerProcess | undefined {
    return this.#processes.get(text(params, 'processId'))
  }

  /** SECURITY: a handle is a name and no content: blocks are read when they are asked for. */
  async openFile(params: Params): Promise<object> {
    const [handleId, path] = [text(params, 'handleId'), pathOf(text(params, 'path'))]
    const { files } = await this.#session.sandbox()
    const { size } = await stat(this, path, true)
    // Fails for what cannot be read, such as a directory.
    await files.read(path, { offset: 0, length: 1 })
    if (!this.#handles.has(handleId) && this.#handles.size >= MAX_HANDLES)
      throw new SandboxError('resource-limit-exceeded', `${MAX_HANDLES} files are already open`)
    this.#handles.set(handleId, { path, size })
    return { handleId }
  }

  async readBlock(params: Params): Promise<object> {
    const file = this.#handles.get(text(params, 'handleId'))
    if (!file) throw new SandboxError('file-not-found', 'no such file handle')
    const offset = count(params, 'offset', 0)
    // PLATFORM: files below /proc have no size and content all the same.
    const left = file.size === 0 ? READ_BYTES : Math.max(0, file.size - offset)
    const length = Math.min(count(params, 'len', READ_BYTES), READ_BYTES, left)
    const { files } = await this.#session.sandbox()
    const bytes = length === 0 ? new Uint8Array() : await files.read(file.path, { offset, length })
    const isEnd = bytes.length < length || (file.size > 0 && offset + bytes.length >= file.size)
    return { chunk: Buffer.from(bytes).toString('base64'), eof: isEnd }
  }

  closeFile(params: Params): object {
    this.#handles.delete(text(params, 'handleId'))
    return {}
  }
}

/** A server that gives no terminals runs the command with pipes: most programs need no more. */
async function withTerminal(
  sandbox: ToolSandbox,
  argv: readonly string[],
  options: StartOptions,
  tty: boolean,
): Promise<RunningToolCommand> {
  try {
    return await sandbox.start(argv, { ...options, terminal: tty })
  } catch (error) {
    if (!(error instanceof SandboxError) || error.code !== 'interactive-disabled') throw error
    return sandbox.start(argv, options)
  }
}

type Handler = (session: ExecServerSession, params: Params) => Promise<object> | object

/** Methods whose answers are large. */
const CONTENT = new Set(['process/read', 'fs/readFile', 'fs/readBlock', 'fs/readDirectory', 'fs/walk'])

const METHODS: Readonly<Record<string, Handler>> = {
  'process/start': (session, params) => session.start(params),
  'process/read'(session, params) {
    const process = session.process(params)
    if (!process) throw new SandboxError('not-found', 'no such process')
    const maxBytes = Math.min(count(params, 'maxBytes', READ_BYTES), READ_BYTES)
    return process.read(count(params, 'afterSeq', 0), maxBytes)
  },
  async 'process/write'(session, params) {
    const process = session.process(params)
    if (!process) return { status: 'unknownProcess' }
    if (!process.running) return { status: process.isOver ? 'stdinClosed' : 'starting' }
    if (process.isOver) return { status: 'stdinClosed' }
    try {
      await process.running.write(Buffer.from(text(params, 'chunk'), 'base64'))
      return { status: 'accepted' }
    } catch {
      return { status: 'stdinClosed' }
    }
  },
  async 'process/signal'(session, params) {
    const process = session.process(params)
    if (process && !process.isOver) await process.running?.signal('SIGINT')
    return {}
  },
  async 'process/terminate'(session, params) {
    const process = session.process(params)
    const running = process !== undefined && !process.isOver
    if (running) await process.running?.signal('SIGKILL')
    return { running }
  },
  'environment/info': async (session) => environmentInfo(await session.sandbox()),
  'environment/status': () => ({ status: 'ready' }),
  // SECURITY: settings of the sandbox's files never become settings of the client.
  'environmentConfig/read': () => ({
    userHomeDir: 'file:///tmp',
    codexHomeDir: 'file:///tmp/.codex',
    hostname: 'sandbox',
    config: { layers: [], cloudInsertionIndex: 0 },
    requirements: { layers: [], cloudInsertionIndex: 0 },
  }),
  'capabilityRoots/discoverV1': (_, { roots }) => ({
    roots: (Array.isArray(roots) ? (roots as readonly Params[]) : []).map(({ id, path }) => ({ id, path })),
  }),
  async 'fs/readFile'(session, params) {
    const bytes = await readWhole(session, pathOf(text(params, 'path')))
    return { dataBase64: Buffer.from(bytes).toString('base64') }
  },
  'fs/open': (session, params) => session.openFile(params),
  'fs/readBlock': (session, params) => session.readBlock(params),
  'fs/close': (session, params) => session.closeFile(params),
  async 'fs/writeFile'(session, params) {
    const { files } = await session.sandbox()
    await files.write(pathOf(text(params, 'path')), Buffer.from(text(params, 'dataBase64'), 'base64'))
    return {}
  },
  async 'fs/createDirectory'(session, params) {
    const path = pathOf(text(params, 'path'))
    await done(session, ['mkdir', ...(params.recursive === false ? [] : ['-p']), '--', path])
    return {}
  },
  async 'fs/getMetadata'(session, params) {
    const { kind, size, modifiedMs } = await stat(
      session,
      pathOf(text(params, 'path')),
      params.followSymlinks !== false,
    )
    const times = { createdAtMs: modifiedMs, modifiedAtMs: modifiedMs }
    return {
      isDirectory: kind === 'dir',
      isFile: kind === 'file',
      isSymlink: kind === 'link',
      size,
      ...times,
    }
  },
  async 'fs/canonicalize'(session, params) {
    return { path: uriOf(await realPath(session, pathOf(text(params, 'path')))) }
  },
  async 'fs/readDirectory'(session, params) {
    const { files } = await session.sandbox()
    const entries = await files.list(pathOf(text(params, 'path')), 1)
    return {
      entries: entries.map(({ name, kind }) => ({
        fileName: name,
        isDirectory: kind === 'dir',
        isFile: kind === 'file',
      })),
    }
  },
  'fs/walk': walk,
  async 'fs/remove'(session, params) {
    const path = pathOf(text(params, 'path'))
    const { files } = await session.sandbox()
    try {
      await files.remove(path)
    } catch (error) {
      const isAbsent = error instanceof SandboxError && error.code === 'file-not-found'
      if (!isAbsent || params.force === false) throw error
    }
    return {}
  },
  async 'fs/copy'(session, params) {
    const [from, to] = [pathOf(text(params, 'sourcePath')), pathOf(text(params, 'destinationPath'))]
    await done(session, ['cp', ...(params.recursive === true ? ['-R'] : []), '--', from, to])
    return {}
  },
  'http/request': (session, params) => session.request(params),
}

function environmentInfo({ workspace }: ToolSandbox): object {
  return {
    shell: { name: 'bash', path: '/bin/bash' },
    cwd: uriOf(workspace),
    temporaryDirectories: ['file:///tmp'],
    tempDir: 'file:///tmp',
    capabilities: { environmentConfigRead: true, sandboxedFileStreaming: true },
  }
}

async function readWhole(session: ExecServerSession, path: string): Promise<Uint8Array> {
  const { files } = await session.sandbox()
  const { size } = await stat(session, path, true)
  const { maxFile } = session
  // One byte more than may be there shows that the file has grown.
  const bytes = size > maxFile ? undefined : await files.read(path, { offset: 0, length: maxFile + 1 })
  if (bytes === undefined || bytes.length > maxFile)
    throw new SandboxError('too-large', `\`${path}\` has more than ${maxFile} bytes`, {
      hint: 'read it in blocks, or with a command',
    })
  return bytes
}

async function realPath(session: ExecServerSession, path: string): Promise<string> {
  const found = await session.session.run(['realpath', '-e', '--', path], {}, {})
  if (found.outcome.kind === 'exited' && found.outcome.code === 0) return found.stdout.replace(/\n$/, '')
  throw new SandboxError('file-not-found', `\`${path}\` does not exist in the sandbox`)
}

async function stat(session: ExecServerSession, path: string, follow: boolean): Promise<ToolSandboxEntry> {
  const { files } = await session.sandbox()
  const found = await files.stat(path)
  return follow && found.kind === 'link' ? files.stat(await realPath(session, path)) : found
}

/** The entries to this depth, or to the largest smaller one that is not too much. */
async function tree(
  session: ExecServerSession,
  path: string,
  depth: number,
): Promise<{ readonly entries: readonly ToolSandboxEntry[]; readonly isCut: boolean }> {
  const { files } = await session.sandbox()
  for (let to = depth, isCut = false; to >= 1; to = Math.floor(to / 2), isCut = true) {
    try {
      return { entries: await files.list(path, to), isCut }
    } catch (error) {
      if (!(error instanceof SandboxError) || error.code !== 'too-large') throw error
    }
  }
  return { entries: [], isCut: true }
}

async function walk(session: ExecServerSession, params: Params): Promise<object> {
  const root = pathOf(text(params, 'path'))
  const options = (params.options ?? {}) as Params
  const depth = Math.min(count(options, 'maxDepth', 8), 32)
  const most = Math.min(count(options, 'maxEntries', MAX_ENTRIES), MAX_ENTRIES)
  const isHidden = (path: string): boolean =>
    options.pruneHiddenDirectories === true &&
    path
      .slice(root.length + 1)
      .split('/')
      .slice(0, -1)
      .some((part) => part.startsWith('.'))
  const found = await tree(session, root, depth)
  const isShown = ({ path, kind }: ToolSandboxEntry): boolean =>
    (kind === 'dir' || kind === 'file') && !isHidden(path)
  const known = found.entries.filter(isShown)
  const entries = known.slice(0, most).map(({ path, kind }) => ({
    path: uriOf(path),
    kind: kind === 'dir' ? 'directory' : 'file',
  }))
  return { entries, errors: [], truncated: found.isCut || known.length > most }
}

/** Runs a command of the protocol itself; it is judged and recorded like every other. */
async function done(session: ExecServerSession, argv: readonly string[]): Promise<void> {
  const { outcome, stderr } = await session.session.run(argv, {}, {})
  if (outcome.kind === 'exited' && outcome.code === 0) return
  throw new SandboxError('invalid-input', stderr.trim().slice(0, 500) || `\`${argv[0]}\` failed`)
}

function passedEnvironment(given: unknown): Record<string, string> {
  const entries = Object.entries((given ?? {}) as Record<string, unknown>)
  return Object.fromEntries(
    entries.filter((entry): entry is [string, string] => typeof entry[1] === 'string' && isPassed(entry[0])),
  )
}
const isPassed = (name: string): boolean => /^[A-Za-z_][A-Za-z0-9_]*$/.test(name) && !NOT_PASSED.test(name)
