import type { TerminalSize } from '../../backends/backend.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Isolation } from '../../model/spec.ts'
import { redact } from '../../model/text/redact.ts'
import type { OpenSandbox } from '../open-sandbox.ts'
import type { Executed, RunningExec, SpawnOptions } from '../sandbox.ts'
import type { IsolationOptions } from './command-isolation.ts'
import { execResultJson } from './exec-json.ts'
import type { OutputBudget } from './output-budget.ts'
import { OutputLog } from './output-log.ts'

/** A command to run, with its options. */
export type ExecRequest = {
  readonly command: string | readonly string[]
  readonly cwd?: string | undefined
  readonly env?: Readonly<Record<string, string>> | undefined
  /** A user of a sandbox with a root user; default: `user`. */
  readonly user?: string | undefined
  /** Must be what the sandbox was created with. */
  readonly isolation?: Isolation | undefined
  /** Of an isolated command: the secrets that it may use. */
  readonly secrets?: readonly string[] | undefined
  /** Of an isolated command: whether it may use the proxy. */
  readonly network?: boolean | undefined
  /** Of an isolated command: the ports at which it can be reached. */
  readonly ports?: readonly number[] | undefined
  /** All of standard input, or `open` to write to it while the command runs. */
  readonly stdin?: Uint8Array | 'open' | undefined
  readonly timeoutMs?: number | undefined
  readonly terminal?: TerminalSize | undefined
  readonly background?: boolean | undefined
  /** Starts in the directory and as the user of the sandbox's template, unless it names others. */
  readonly usesDefaults?: boolean | undefined
  /** How many bytes of output are kept. */
  readonly keepBytes?: number | undefined
}

/** How many bytes of a background command's output are kept for clients that attach later. */
const KEEP_BYTES = 1024 * 1024
const PIECE_BYTES = 64 * 1024
/** The largest output of one response. */
export const ANSWER_BYTES = 8 * 1024 * 1024

/** What a command of the server is started with. */
export type ExecParts = {
  readonly sandbox: OpenSandbox
  readonly request: ExecRequest
  /** The tenant of the output, and the server's output budget. */
  readonly tenant: string
  readonly budget: OutputBudget
  readonly approve: NonNullable<SpawnOptions['approve']>
}

const isolationOf = ({ isolation, secrets, network, ports }: ExecRequest): IsolationOptions => ({
  ...(isolation === undefined ? {} : { isolation }),
  ...(secrets === undefined ? {} : { secrets }),
  ...(network === undefined ? {} : { network }),
  ...(ports === undefined ? {} : { ports }),
})

/** One command that was started, with its output. */
export class ExecSession {
  readonly sandboxId: string
  readonly log: OutputLog
  readonly startedAt = Date.now()
  readonly #parts: ExecParts
  readonly #stop = new AbortController()
  #running: RunningExec | undefined
  #done: Executed | undefined
  #failure: unknown

  constructor(parts: ExecParts) {
    this.#parts = parts
    this.sandboxId = parts.sandbox.id
    this.log = new OutputLog(
      parts.request.keepBytes ?? (parts.request.background ? KEEP_BYTES : ANSWER_BYTES),
      parts.budget,
      parts.tenant,
    )
  }

  /** Resolves once the command runs; rejects if it is refused. */
  async start(): Promise<void> {
    const { sandbox, request, approve } = this.#parts
    this.#running = await sandbox.spawn(request.command, {
      ...(request.cwd === undefined ? {} : { cwd: request.cwd }),
      ...(request.env === undefined ? {} : { env: request.env }),
      ...(request.user === undefined ? {} : { user: request.user }),
      ...isolationOf(request),
      ...(request.stdin || request.terminal ? { stdin: true } : {}),
      ...(request.terminal ? { terminal: request.terminal } : {}),
      ...(request.timeoutMs === undefined ? {} : { limits: { wallMs: request.timeoutMs } }),
      output: (stream, chunk) => this.log.push(stream, chunk),
      signal: this.#stop.signal,
      approve,
    })
    const { result } = this.#running
    if (request.stdin instanceof Uint8Array) void this.#feed(this.#running, request.stdin)
    result.then(
      (done) => {
        this.#done = done
        this.log.end()
      },
      (error: unknown) => {
        this.#failure = error
        this.log.end()
      },
    )
  }

  /** Writes standard input; a command may end without reading all of it. */
  async #feed(running: RunningExec, input: Uint8Array): Promise<void> {
    try {
      for (let at = 0; at < input.length; at += PIECE_BYTES)
        await running.write(input.subarray(at, at + PIECE_BYTES))
      running.endInput()
    } catch {
      // The result reports how the command ended.
    }
  }

  get id(): string {
    return this.#alive.execId
  }

  /** The command as one line, with secrets redacted. */
  get command(): string {
    const { command } = this.#parts.request
    return redact(typeof command === 'string' ? command : command.join(' '))
  }

  get isTerminal(): boolean {
    return this.#parts.request.terminal !== undefined
  }

  get decision(): RunningExec['decision'] {
    return this.#alive.decision
  }

  get pid(): number {
    return this.#alive.pid
  }

  get result(): Promise<Executed> {
    return this.#alive.result
  }

  get done(): Executed | undefined {
    return this.#done
  }

  get failure(): unknown {
    return this.#failure
  }

  get state(): 'running' | 'ended' | 'failed' {
    return this.#done ? 'ended' : this.#failure === undefined ? 'running' : 'failed'
  }

  write(bytes: Uint8Array): Promise<void> {
    this.#assertRunning()
    return this.#alive.write(bytes)
  }

  endInput(): void {
    this.#assertRunning()
    this.#alive.endInput()
  }

  signal(name: NodeJS.Signals): void {
    this.#assertRunning()
    this.#alive.signal(name)
  }

  resize(size: TerminalSize): void {
    this.#assertRunning()
    this.#alive.resize(size)
  }

  /** Kills the command. */
  cancel(): void {
    this.#stop.abort()
  }

  get #alive(): RunningExec {
    if (!this.#running) throw new SandboxError('wrong-state', 'the command has not started')
    return this.#running
  }

  #assertRunning(): void {
    if (this.state !== 'running') throw new SandboxError('wrong-state', `the command has ${this.state}`)
  }
}

/** One command as the API shows it: the same as `ringfence run --json`. */
export function execJson(session: ExecSession, live: Pick<OpenSandbox, 'id' | 'backend' | 'level'>) {
  const { done, log } = session
  const said = { execId: session.id, stdout: log.text('stdout'), stderr: log.text('stderr') }
  const truncated = (done?.truncated ?? false) || log.isCut
  const { state } = session
  if (done) return { ...execResultJson(live, said, { ...done, truncated }), state }
  const running = {
    layers: [],
    outcome: null,
    truncated,
    durationMs: Date.now() - session.startedAt,
    violations: [],
  }
  return { ...execResultJson(live, said, { ...running, decision: null }), state }
}
