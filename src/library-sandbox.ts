import { constants } from 'node:os'
import type { Duplex } from 'node:stream'
import type { OutputStream, TerminalSize, Usage } from './backends/backend.ts'
import type { Connection } from './egress/connection.ts'
import type { Review } from './host/review/review.ts'
import { exitCodeOf } from './model/command.ts'
import { SandboxError } from './model/errors.ts'
import type { Level } from './model/guarantee.ts'
import type { Plan } from './model/plan.ts'
import { Deadline } from './supervisor/lifecycle/deadline.ts'
import type {
  ExecOptions,
  Executed,
  Sandbox as OpenSandbox,
  RunningExec,
  SpawnOptions,
} from './supervisor/sandbox.ts'
import type { SandboxFiles } from './supervisor/sandbox-files.ts'

/** A finished command: output as text, and the same as bytes. */
export type LibraryResult = Omit<Executed, 'stdout' | 'stderr'> & {
  /** As a shell reports it: the program's own code, 128 + the signal's number, or 124 if a limit stopped the command. */
  readonly exitCode: number
  readonly stdout: string
  readonly stderr: string
  readonly stdoutBytes: Buffer
  readonly stderrBytes: Buffer
}

/** A piece of output of a running command. */
export type OutputChunk = { readonly stream: OutputStream; readonly data: Buffer }

/**
 * A sandbox in this process.
 *
 *     await using sandbox = await Sandbox.create({ workspace: '/home/me/project' })
 *     const { exitCode, stdout } = await sandbox.exec('npm test')
 */
export class LibrarySandbox implements AsyncDisposable {
  readonly id: string
  readonly backend: string
  readonly level: Level
  readonly plan: Plan
  readonly files: LibraryFiles
  readonly review: Review | undefined
  readonly #open: OpenSandbox
  readonly #deadline: Deadline

  constructor(open: OpenSandbox, timeoutMs?: number) {
    this.#open = open
    this.#deadline = new Deadline(() => void this.close().catch(() => {}))
    this.#deadline.set(timeoutMs)
    open.onClose(async () => this.#deadline.cancel())
    this.id = open.id
    this.backend = open.backend
    this.level = open.level
    this.plan = open.plan
    this.files = filesOf(open.files)
    this.review = open.review
  }

  /**
   * Runs a shell line (text) or a program (list) and waits for its end. A non-zero exit is a result, not an error. Rejects with
   * the reason of `signal`, by default an `AbortError`, when the caller aborts.
   *
   *     const { exitCode, stdout } = await sandbox.exec(['git', 'status'], { limits: { wallMs: 5000 } })
   */
  async exec(command: string | readonly string[], options: ExecOptions = {}): Promise<LibraryResult> {
    options.signal?.throwIfAborted()
    const done = await inLibraryWords(() => this.#open.exec(command, options))
    options.signal?.throwIfAborted()
    return resultOf(done)
  }

  /**
   * Starts a command and returns while it runs. Iterate over it for its output, or pass `output`.
   *
   *     const server = await sandbox.spawn('npm run dev')
   *     for await (const { stream, data } of server) process[stream].write(data)
   */
  async spawn(command: string | readonly string[], options: SpawnOptions = {}): Promise<LibraryCommand> {
    options.signal?.throwIfAborted()
    const chunks = new Chunks()
    const output = options.output ?? ((stream: OutputStream, data: Uint8Array) => chunks.push(stream, data))
    // Output without a receiver is kept in memory, so the sandbox's limit for that applies.
    const limits = options.output ? options.limits : { outputBytes: KEPT_BYTES, ...options.limits }
    const spawning = { ...options, output, ...(limits ? { limits } : {}) }
    const running = await inLibraryWords(() => this.#open.spawn(command, spawning))
    return new LibraryCommand(running, chunks, options.signal)
  }

  /** A byte stream to a TCP port on the sandbox's own loopback. */
  connect(port: number): Promise<Duplex> {
    return this.#open.connect(port)
  }

  /** The isolation layers that are active, as the kernel reports them. */
  layers(): Promise<readonly string[]> {
    return this.#open.layers()
  }

  /** Memory and processor time in use, if the backend can tell. */
  usage(): Usage | undefined {
    return this.#open.usage()
  }

  /** Freezes every process until `resume`; the timeout waits too. */
  async pause(): Promise<void> {
    await this.#open.pause()
    this.#deadline.hold()
  }

  /** Continues a paused sandbox. */
  async resume(): Promise<void> {
    await this.#open.resume()
    this.#deadline.release()
  }

  /** Milliseconds until the sandbox is closed; undefined without a timeout. */
  get timeoutLeftMs(): number | undefined {
    return this.#deadline.leftMs
  }

  /**
   * Keeps the sandbox open for at least this long from now; a later end stays, and so does a sandbox without a timeout.
   *
   *     const sandbox = await Sandbox.create({}, { timeoutMs: 60_000 })
   *     sandbox.extendTimeout(600_000)
   */
  extendTimeout(timeoutMs: number): void {
    checkTimeout(timeoutMs)
    this.#deadline.extend(timeoutMs)
  }

  /** Replaces the hosts that the sandbox may reach, with immediate effect. */
  setAllowHosts(hosts: readonly string[]): Promise<void> {
    return inLibraryWords(() => this.#open.setAllowHosts(hosts))
  }

  /** The latest connections through the proxy, allowed and refused. */
  get connections(): readonly Connection[] {
    return this.#open.connections
  }

  /** Resolves with the reason when the sandbox has ended. */
  get ended(): Promise<string> {
    return this.#open.ended
  }

  /** Calls the action once, when the sandbox is closed. */
  onClose(action: () => void): void {
    this.#open.onClose(async () => action())
  }

  /** Ends the sandbox. Calling it again has no effect. */
  close(): Promise<void> {
    return this.#open.close()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }
}

/** Throws unless it is a timeout; absent means none. */
export function checkTimeout(timeoutMs: number | undefined): void {
  if (timeoutMs === undefined || (Number.isSafeInteger(timeoutMs) && timeoutMs > 0)) return
  throw new SandboxError('invalid-input', `a timeout is a positive whole number of ms, not ${timeoutMs}`)
}

/** What one command may print before it is read. */
const KEPT_BYTES = 16 * 1024 * 1024

/** A running command. */
export class LibraryCommand implements AsyncIterable<OutputChunk> {
  readonly execId: string
  readonly pid: number
  /** The command's end. Rejects with the signal's reason if the caller aborted it. */
  readonly result: Promise<LibraryResult>
  readonly #running: RunningExec
  readonly #chunks: Chunks

  constructor(running: RunningExec, chunks: Chunks, signal: AbortSignal | undefined) {
    this.execId = running.execId
    this.pid = running.pid
    this.#running = running
    this.#chunks = chunks
    this.result = running.result
      .then((done) => {
        signal?.throwIfAborted()
        return resultOf({ ...done, ...chunks.whole(done) })
      })
      .finally(() => chunks.end())
    this.result.catch(() => {})
  }

  /** Writes to the command's standard input; needs `stdin: true`. */
  write(data: string | Uint8Array): Promise<void> {
    return this.#running.write(typeof data === 'string' ? Buffer.from(data) : data)
  }

  endInput(): void {
    this.#running.endInput()
  }

  signal(signal: NodeJS.Signals): void {
    this.#running.signal(signal)
  }

  resize(size: TerminalSize): void {
    this.#running.resize(size)
  }

  [Symbol.asyncIterator](): AsyncIterator<OutputChunk> {
    return this.#chunks[Symbol.asyncIterator]()
  }
}

/** Output that arrived: each piece goes to one reader, and all of it into the result. */
class Chunks implements AsyncIterable<OutputChunk> {
  readonly #waiting: OutputChunk[] = []
  readonly #kept: Record<OutputStream, Buffer[]> = { stdout: [], stderr: [] }
  #ended = false
  #wake: () => void = () => {}

  push(stream: OutputStream, data: Uint8Array): void {
    const chunk = { stream, data: Buffer.from(data) }
    this.#waiting.push(chunk)
    this.#kept[stream].push(chunk.data)
    this.#wake()
  }

  /** All output; what the caller received itself is not here. */
  whole({ stdout, stderr }: Pick<Executed, 'stdout' | 'stderr'>): Pick<Executed, 'stdout' | 'stderr'> {
    return {
      stdout: Buffer.concat([stdout, ...this.#kept.stdout]),
      stderr: Buffer.concat([stderr, ...this.#kept.stderr]),
    }
  }

  end(): void {
    this.#ended = true
    this.#wake()
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<OutputChunk, void> {
    for (;;) {
      for (let next = this.#waiting.shift(); next; next = this.#waiting.shift()) yield next
      if (this.#ended) return
      await new Promise<void>((resolve) => {
        this.#wake = resolve
      })
    }
  }
}

/** Files of a sandbox, with writing of several at once. */
export type LibraryFiles = SandboxFiles & {
  /** Writes several files; stops at the first that fails. */
  writeMany(files: readonly { readonly path: string; readonly data: Uint8Array | string }[]): Promise<void>
}

function filesOf(files: SandboxFiles): LibraryFiles {
  const writeMany: LibraryFiles['writeMany'] = async (list) => {
    for (const { path, data } of list) await files.write(path, data)
  }
  return Object.assign(files, { writeMany })
}

/** The same bytes, not a copy: output may be large. */
const viewOf = (bytes: Uint8Array): Buffer => Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)

function resultOf({ stdout, stderr, ...done }: Executed): LibraryResult {
  const [out, err] = [viewOf(stdout), viewOf(stderr)]
  return {
    ...done,
    exitCode: exitCodeOf(done.outcome, constants.signals),
    stdout: out.toString('utf8'),
    stderr: err.toString('utf8'),
    stdoutBytes: out,
    stderrBytes: err,
  }
}

/** Flags of the command line, and the options of the library that do the same. */
const WORDS: readonly (readonly [RegExp, string])[] = [
  [/--waive ([\w.]+)/g, "waive: ['$1']"],
  [/--allow-host (\S+)/g, "network: { mode: 'fetch', allowHosts: ['$1'] }"],
  [/--unix-socket(?: (\S+))?/g, 'unixSockets'],
  [/--min-isolation/g, 'minIsolation'],
  [/--timeout/g, 'limits.wallMs'],
  [/--idle/g, 'limits.idleMs'],
  [/--output/g, 'limits.outputBytes'],
  [/--memory/g, 'limits.memoryMb'],
  [/--disk/g, 'limits.diskMb'],
  [/--pids/g, 'limits.pids'],
  [/--cpus/g, 'limits.cpus'],
  [/--(backend|image|read|write|deny|workspace|preset|network|env|secret|review|config|policy)\b/g, '`$1`'],
  [/--yes/g, '`approve`'],
]

/** Runs the work; the hint of an error then names the library's options instead of flags. */
export async function inLibraryWords<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (!(error instanceof SandboxError) || error.hint === undefined) throw error
    const hint = WORDS.reduce((text, [flag, option]) => text.replace(flag, option), error.hint)
    throw new SandboxError(error.code, error.message, {
      hint,
      cause: error.cause ?? error,
      ...(error.reasons ? { reasons: error.reasons } : {}),
    })
  }
}
