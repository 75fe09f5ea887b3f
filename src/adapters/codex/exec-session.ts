import { SandboxError } from '../../model/errors.ts'
import { isWithin } from '../../model/files/path.ts'
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
import { ExecServerProcess, type Notify, pathOf, uriOf } from './processes.ts'

/**
 * One session of Codex's exec-server protocol: an unmodified Codex runs its commands and file operations in a sandbox of
 * ours. SECURITY: what the client sends about sandboxes, roots and networks is ignored; only our policy and plan decide.
 */

const MAX_PROCESSES = 64
const MAX_HANDLES = 64
const MAX_REQUESTS = 32
const MAX_FILE = 64 * 1024 * 1024
const MAX_ENTRIES = 50_000
const READ_BYTES = 1024 * 1024
const MAX_WAIT_MS = 60_000

/** Variables that belong to the client's machine and mean nothing, or something else, in the sandbox. */
const NOT_PASSED =
  /^(PATH|HOME|PWD|OLDPWD|SHELL|USER|LOGNAME|TMPDIR|TMP|TEMP|XDG_.*|DISPLAY|WAYLAND_DISPLAY|SSH_.*|(ALL|HTTPS?|NO|FTP)_PROXY|CODEX_.*|.*_(TOKEN|KEY|SECRET|PASSWORD))$/i

/** The processes and open files of one client, in one sandbox. */
export class ExecServerSession {
  readonly #session: AgentSession
  readonly #approver: Approver | undefined
  readonly #processes = new Map<string, ExecServerProcess>()
  readonly #handles = new Map<string, Uint8Array>()
  #notify: Notify = () => {}
  #requests = 0

  constructor(session: AgentSession, approver?: Approver) {
    this.#session = session
    this.#approver = approver
  }

  /** Sends notifications to this connection from now on. */
  attach(notify: Notify): void {
    this.#notify = notify
  }

  /** Answers one request. */
  async call(method: string, params: Params): Promise<object> {
    const handler = Object.hasOwn(METHODS, method) ? METHODS[method] : undefined
    if (!handler) throw new SandboxError('not-found', `no method \`${method.slice(0, 64)}\``)
    return handler(this, params)
  }

  close(): Promise<void> {
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
    const process = new ExecServerProcess(processId, tty, (name, body) => this.#notify(name, body))
    this.#processes.set(processId, process)
    try {
      const cwd = await this.#directory(asked)
      const sandbox = await this.#session.sandbox()
      const options = {
        cwd,
        env: passedEnvironment(params.env),
        stdinOpen: tty || params.pipeStdin === true,
        approved: this.#approver,
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
    if (this.#requests >= MAX_REQUESTS)
      throw new SandboxError('resource-limit-exceeded', `${MAX_REQUESTS} HTTP requests are already running`)
    const sandbox = await this.#session.sandbox()
    const notify: Notify = (name, body) => this.#notify(name, body)
    const request = await startRequest({ sandbox, approver: this.#approver, notify }, params)
    this.#requests++
    void request.ended.finally(() => {
      this.#requests--
    })
    return request.answer
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
      if (process.isOver) this.#processes.delete(id)
    }
    if (this.#processes.size >= MAX_PROCESSES)
      throw new SandboxError('resource-limit-exceeded', `${MAX_PROCESSES} processes are already running`)
  }

  process(params: Params): ExecServerProcess | undefined {
    return this.#processes.get(text(params, 'processId'))
  }

  async openFile(params: Params): Promise<object> {
    const handleId = text(params, 'handleId')
    if (this.#handles.size >= MAX_HANDLES)
      throw new SandboxError('resource-limit-exceeded', `${MAX_HANDLES} files are already open`)
    this.#handles.set(handleId, await readWhole(this, pathOf(text(params, 'path'))))
    return { handleId }
  }

  readBlock(params: Params): object {
    const bytes = this.#handles.get(text(params, 'handleId'))
    if (!bytes) throw new SandboxError('file-not-found', 'no such file handle')
    const offset = count(params, 'offset', 0)
    const end = offset + Math.min(count(params, 'len', READ_BYTES), READ_BYTES)
    const chunk = Buffer.from(bytes.subarray(offset, end)).toString('base64')
    return { chunk, eof: end >= bytes.length }
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

const METHODS: Readonly<Record<string, Handler>> = {
  'process/start': (session, params) => session.start(params),
  'process/read'(session, params) {
    const process = session.process(params)
    if (!process) throw new SandboxError('not-found', 'no such process')
    const maxBytes = Math.min(count(params, 'maxBytes', READ_BYTES), READ_BYTES)
    return process.read(
      count(params, 'afterSeq', 0),
      maxBytes,
      Math.min(count(params, 'waitMs', 0), MAX_WAIT_MS),
    )
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
    const entries = await list(session, pathOf(text(params, 'path')), 1)
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
  if (size > MAX_FILE)
    throw new SandboxError('too-large', `\`${path}\` has ${size} bytes; the limit is ${MAX_FILE}`)
  return files.read(path)
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

async function list(
  session: ExecServerSession,
  path: string,
  depth: number,
): Promise<readonly ToolSandboxEntry[]> {
  const entries = await (await session.sandbox()).files.list(path, depth)
  if (entries.length > MAX_ENTRIES)
    throw new SandboxError('too-large', `\`${path}\` has more than ${MAX_ENTRIES} entries`)
  return entries
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
  const all = (await (await session.sandbox()).files.list(root, depth)).filter(({ path }) => !isHidden(path))
  const known = all.filter(({ kind }) => kind === 'dir' || kind === 'file')
  const entries = known.slice(0, most).map(({ path, kind }) => ({
    path: uriOf(path),
    kind: kind === 'dir' ? 'directory' : 'file',
  }))
  return { entries, errors: [], truncated: known.length > most }
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
