import type { Decision } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import { Capture } from './capture.ts'
import { CodeContext, type Language } from './code-context.ts'
import type { AskHost } from './host-elicitation.ts'
import { PendingApprovals } from './mcp/pending-approvals.ts'
import { type Call, Question } from './operations/operation.ts'
import { type Asked, commandText, particularsOf } from './particulars.ts'
import { type Process, ProcessTable } from './processes.ts'
import { ShellState } from './shell-state.ts'
import type { CommandEnd, StartOptions, ToolSandbox } from './tool-sandbox.ts'

/** Default timeout of a command. */
const DEFAULT_TIMEOUT_MS = 120_000
const PROGRESS_MS = 1_000

/** Options of a command that runs to its end. */
export type RunOptions = Omit<StartOptions, 'output' | 'signal' | 'approved' | 'stdinOpen' | 'terminal'>

/** A finished command with its output as text. */
export type Finished = CommandEnd & { readonly id: string; readonly stdout: string; readonly stderr: string }

/**
 * An agent's session: its sandbox, opened on first use, and its running commands. INVARIANT: the sandbox is used only
 * through `ToolSandbox`, so every command is checked by the policy and recorded.
 */
export class AgentSession implements AsyncDisposable {
  readonly #open: () => Promise<ToolSandbox>
  readonly processes = new ProcessTable()
  readonly approvals = new PendingApprovals()
  #sandbox: Promise<ToolSandbox> | undefined
  #contexts = new Map<string, CodeContext>()
  #shells = new Map<string, ShellState>()
  #closed = false
  /** Asks the user of the client about a host, while one of its calls runs; absent: nobody can be asked. */
  askHost: AskHost | undefined

  constructor(open: () => Promise<ToolSandbox>) {
    this.#open = open
  }

  /** The sandbox. If opening fails, the next call tries again. */
  async sandbox(): Promise<ToolSandbox> {
    if (this.#closed) throw new SandboxError('wrong-state', 'this session is closed')
    this.#sandbox ??= this.#open()
    try {
      return await this.#sandbox
    } catch (error) {
      this.#sandbox = undefined
      throw error
    }
  }

  /** Runs a command and waits for its exit. */
  async run(command: string | readonly string[], options: RunOptions, call: Call): Promise<Finished> {
    const sandbox = await this.sandbox()
    await this.#ask(sandbox, command, call, options)
    const [stdout, stderr] = [new Capture(), new Capture()]
    let bytes = 0
    const running = await sandbox.start(command, {
      timeoutMs: DEFAULT_TIMEOUT_MS,
      ...options,
      signal: call.signal,
      approved: call.approved,
      output(stream, chunk) {
        bytes += chunk.length
        const capture = stream === 'stdout' ? stdout : stderr
        capture.push(chunk)
      },
    })
    const ticks = call.progress && everySecond(call.progress, () => bytes)
    try {
      const ended = await running.ended
      const truncated = ended.truncated || stdout.truncated || stderr.truncated
      return { ...ended, truncated, id: running.id, stdout: stdout.text, stderr: stderr.text }
    } finally {
      clearInterval(ticks)
    }
  }

  /** Starts a command that keeps running after the call. */
  async start(
    command: string | readonly string[],
    options: Omit<StartOptions, 'output' | 'signal' | 'approved'>,
    call: Call,
  ): Promise<Process> {
    const sandbox = await this.sandbox()
    await this.#ask(sandbox, command, call, options)
    this.processes.assertRoom()
    const output = new Capture()
    const running = await sandbox.start(command, {
      ...options,
      approved: call.approved,
      output: (_, chunk) => output.push(chunk),
    })
    return this.processes.add(running, output)
  }

  /** A shell that keeps its directory and variables between commands. */
  shell(name = 'default'): ShellState {
    return take(this.#shells, name, () => new ShellState(this, name))
  }

  /** An interpreter that keeps its variables between runs. */
  code(language: Language, name = 'default'): CodeContext {
    return take(this.#contexts, `${language}:${name}`, () => new CodeContext(this, language))
  }

  /** If the user can be asked, asks before anything runs. */
  async #ask(
    sandbox: ToolSandbox,
    command: string | readonly string[],
    call: Call,
    options: Asked = {},
  ): Promise<void> {
    if (!call.canAsk || call.approved) return
    const decision: Decision = await sandbox.judge(command, options)
    if (decision.action === 'ask')
      throw new Question(commandText(command), decision.reason, particularsOf(options))
  }

  /** Checks code for a running interpreter like a command. */
  async admit(command: readonly string[], call: Call): Promise<void> {
    await this.#ask(await this.sandbox(), command, call)
    const { action, reason } = await (await this.sandbox()).judge(command)
    if (action === 'deny') throw new SandboxError('forbidden-command', reason)
    if (action === 'ask' && !call.approved) throw new SandboxError('approval-required', reason)
  }

  /** Destroys the sandbox; the next call opens a new one. */
  async reset(): Promise<void> {
    const old = this.#sandbox
    this.#sandbox = undefined
    this.#contexts = new Map()
    this.#shells = new Map()
    this.processes.clear()
    await (await old?.catch(() => undefined))?.close().catch(() => {})
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.reset()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }
}

function take<T>(map: Map<string, T>, key: string, make: () => T): T {
  const found = map.get(key)
  if (found !== undefined) return found
  if (map.size >= 16)
    throw new SandboxError('resource-limit-exceeded', 'too many contexts', {
      hint: 'reuse an existing context',
    })
  const made = make()
  map.set(key, made)
  return made
}

function everySecond(progress: NonNullable<Call['progress']>, bytes: () => number): NodeJS.Timeout {
  const started = Date.now()
  const say = (): void =>
    progress(`running for ${Math.round((Date.now() - started) / 1000)} s, ${bytes()} bytes of output`)
  return setInterval(say, PROGRESS_MS)
}
