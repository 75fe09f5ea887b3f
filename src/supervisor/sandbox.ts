import type { Duplex } from 'node:stream'
import type {
  Backend,
  BackendSandbox,
  ExecIo,
  RunningCommand,
  TerminalSize,
  Usage,
} from '../backends/backend.ts'
import { canDetach, canFreeze, canLease, canQuiesce, type Freezable, ownsDisk } from '../backends/backend.ts'
import type { Connection } from '../egress/connection.ts'
import { heldBytes } from '../host/files/held-files.ts'
import type { Review } from '../host/review/review.ts'
import type { ExecResult } from '../model/command.ts'
import type { Decision } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import type { Event, EventSink } from '../model/event.ts'
import type { Level } from '../model/guarantee.ts'
import type { Plan } from '../model/plan.ts'
import type { Limits, Spec } from '../model/spec.ts'
import type { HostVerdict } from '../policy/network/host-verdicts.ts'
import { networkHint } from '../policy/network-hint.ts'
import { type AuthorizeOptions, CommandAuthorizer } from './approvals/command-authorizer.ts'
import { type AskHost, HostQuestions } from './approvals/host-questions.ts'
import type { Egress } from './egress.ts'
import { askedCommand, placed } from './exec/asked-command.ts'
import { assertIsolation, type IsolationOptions } from './exec/command-isolation.ts'
import type { AskedCommand, JudgeOptions } from './gate.ts'
import { SandboxFiles } from './sandbox-files.ts'
import { SandboxRecord } from './sandbox-record.ts'

/** How a command of a sandbox runs. */
export type ExecOptions = AuthorizeOptions &
  IsolationOptions & {
    readonly stdin?: 'inherit' | Uint8Array | string
    /** Receives output as it arrives. Without it, a command that prints more than 16 MiB, or `outputBytes`, is killed. */
    readonly output?: ExecIo['output']
    readonly signal?: AbortSignal
    readonly onStarted?: ExecIo['onStarted']
    /** For this command only, in addition to the sandbox's limits. */
    readonly limits?: Limits
    /** The last command: the sandbox is closed together with it. */
    readonly last?: boolean
  }

/** A finished command with its id and decision. */
export type Executed = ExecResult & {
  readonly execId: string
  readonly decision: Decision
  /** What would let the command reach the network that this sandbox does not have. */
  readonly hint?: string
}

/** How a command is started that the caller talks to. */
export type SpawnOptions = Omit<ExecOptions, 'stdin' | 'last'> & {
  /** Keeps standard input open for `write`. */
  readonly stdin?: boolean
  /** Gives the command a terminal; all its output arrives as `stdout`. */
  readonly terminal?: TerminalSize
}

/** A running command that the caller controls. */
export type RunningExec = Omit<RunningCommand, 'result'> & {
  readonly execId: string
  readonly decision: Decision
  readonly result: Promise<Executed>
}

/** The default size limit of a collected result. */
const RESULT_BYTES = 16 * 1024 * 1024

/** What a sandbox is made of. */
export type SandboxParts = {
  readonly id: string
  readonly plan: Plan
  readonly backend: Backend
  /** Absent if the caller starts the process itself. */
  readonly inside: BackendSandbox | undefined
  /** Present in network mode `fetch`. */
  readonly egress?: Egress | undefined
  /** Present if changes wait for review. */
  readonly review?: Review | undefined
  readonly trail: EventSink
  readonly newId: (prefix: string) => string
  readonly judge: (command: AskedCommand, options: Omit<JudgeOptions, 'backend'>) => Promise<Decision>
  /** Throws if the operator's policy does not permit these hosts. */
  readonly judgeHosts: (hosts: readonly string[]) => void
  /** Asks a person about a host that is not on the list; absent: it is refused. */
  readonly askHost?: AskHost | undefined
}

/** One sandbox. Every command in it is checked by the policy before it runs, and recorded before and after. */
export class Sandbox implements AsyncDisposable {
  readonly id: string
  readonly backend: string
  readonly level: Level
  readonly plan: Plan
  readonly files: SandboxFiles
  /** The changes of the sandbox, if the spec asked for review: list, apply or drop them. */
  readonly review: Review | undefined
  readonly #parts: SandboxParts
  readonly #record: SandboxRecord
  readonly #permits: CommandAuthorizer
  readonly #closing: (() => Promise<void>)[] = []
  readonly #questions: HostQuestions | undefined
  #failedLaunch: () => void = () => {}
  #lost: string | undefined
  #state: 'ready' | 'destroyed' = 'ready'
  #allowHosts: readonly string[] | undefined
  readonly #approvedHosts: string[] = []
  #commandDefaults: CommandDefaults = {}

  constructor(parts: SandboxParts) {
    this.#parts = parts
    this.id = parts.id
    this.backend = parts.backend.name
    this.level = parts.backend.level
    this.plan = parts.plan
    this.review = parts.review
    const record = new SandboxRecord(parts)
    this.#record = record
    this.#permits = new CommandAuthorizer({
      plan: parts.plan,
      judge: (command, asking) => this.judge(command, asking),
      record,
    })
    this.files = new SandboxFiles(
      (operation, path) => record.file(operation, path),
      () => this.#inside().files,
    )
    this.#questions = this.#hostQuestions(parts)
    void parts.inside?.ended.then((reason) => this.#ended(reason))
  }

  /** The policy's decision about a command in this sandbox as it is now; runs nothing. */
  judge(command: AskedCommand, { cwd, env }: Pick<JudgeOptions, 'cwd' | 'env'> = {}): Promise<Decision> {
    return this.#parts.judge(command, { cwd, env, allowHosts: this.allowHosts })
  }

  /** Runs a shell line (text) or a program (list) and waits for its end. A non-zero exit is an outcome, not an error. */
  async exec(command: string | readonly string[], options: ExecOptions = {}): Promise<Executed> {
    this.#assertAlive()
    assertUser(this.plan, options.user)
    assertIsolation(this.plan, options)
    const asked = askedCommand(command)
    const execId = this.#parts.newId('ex')
    // The sandbox starts while the command is checked and recorded; the command starts after both.
    const permit = this.#permits.decide(asked, execId, options)
    try {
      // Settles only when nothing of the command is left, also if the permit was refused.
      const limits = this.#limitsFor(options)
      const io = { ...ioOf({ ...options, limits }, permit), onSudo: this.#onSudo(execId) }
      const result = await this.#inside().exec(placed(asked, options), io)
      const decision = await permit
      const events = this.#record.endOf(execId, result)
      await (options.last ? this.#end(events) : this.#record.write(...events))
      return finished(result, execId, decision)
    } catch (error) {
      await this.#recordFailure(execId, permit, error)
      throw error
    }
  }

  /** Starts a command and returns while it runs. */
  async spawn(command: string | readonly string[], options: SpawnOptions = {}): Promise<RunningExec> {
    this.#assertAlive()
    assertUser(this.plan, options.user)
    assertIsolation(this.plan, options)
    const asked = askedCommand(command)
    const execId = this.#parts.newId('ex')
    const permit = this.#permits.decide(asked, execId, options)
    try {
      const { output, signal, stdin, terminal } = options
      const running = await this.#inside().start(placed(asked, options), {
        permit,
        output,
        signal,
        limits: this.#limitsFor(options),
        stdin,
        terminal,
        onSudo: this.#onSudo(execId),
      })
      return this.#watched(running, execId, await permit)
    } catch (error) {
      await this.#recordFailure(execId, permit, error)
      throw error
    }
  }

  #onSudo(execId: string): NonNullable<ExecIo['onSudo']> {
    return ({ user, argv }) => this.#record.raised(execId, user, argv)
  }

  /** SECURITY: output without a receiver is buffered in our memory, so it always has a limit. */
  #limitsFor({ output, limits }: Pick<ExecOptions, 'output' | 'limits'>): Limits {
    const isHeld = (limits?.outputBytes ?? this.plan.limits.outputBytes) !== undefined
    return output !== undefined || isHeld ? { ...limits } : { ...limits, outputBytes: RESULT_BYTES }
  }

  /** Records the end of a running command before its result resolves. */
  #watched(running: RunningCommand, execId: string, decision: Decision): RunningExec {
    const result = running.result.then(
      async (ended) => {
        await this.#record.write(...this.#record.endOf(execId, ended))
        return finished(ended, execId, decision)
      },
      async (error) => {
        await this.#recordFailure(execId, Promise.resolve(), error)
        throw error
      },
    )
    result.catch(() => {})
    return {
      execId,
      decision,
      result,
      pid: running.pid,
      write: (data) => running.write(data),
      endInput: () => running.endInput(),
      signal: (signal) => running.signal(signal),
      resize: (size) => running.resize(size),
    }
  }

  async #recordFailure(execId: string, permit: Promise<unknown>, error: unknown): Promise<void> {
    const decided = await permit.then(
      () => true,
      () => false,
    )
    if (error instanceof SandboxError && error.code === 'launch-failed') this.#failedLaunch()
    if (decided) await this.#record.failed(execId, (error as Error).message)
  }

  /** A byte stream to a TCP port on the sandbox's own loopback. */
  async connect(port: number): Promise<Duplex> {
    if (!Number.isInteger(port) || port < 1 || port > 65_535)
      throw new SandboxError('invalid-input', `\`${port}\` is not a port number`)
    return this.#inside().connect(port)
  }

  /** The isolation layers that are really active, as the kernel reports them. */
  layers(): Promise<readonly string[]> {
    return this.#inside().layers()
  }

  /** The current resource usage of the sandbox, if the backend can tell. */
  /** Bytes of deleted files below a path that processes of the sandbox still hold; undefined: too many files. */
  async heldBytes(path: string): Promise<number | undefined> {
    const pid = this.#inside().hostPid?.()
    return pid === undefined ? 0 : heldBytes(pid, path)
  }

  usage(): Usage | undefined {
    return this.#state === 'ready' ? this.#parts.inside?.usage?.() : undefined
  }

  /** Freezes every process until `resume`. */
  async pause(): Promise<void> {
    const inside = this.#freezable('pause')
    await this.files.hold()
    await inside.pause().catch((error: unknown) => {
      this.files.release()
      throw error
    })
    await this.#record.state('paused')
  }

  async resume(): Promise<void> {
    await this.#freezable('resume').resume()
    this.files.release()
    await this.#record.state('ready')
  }

  get commandDefaults(): CommandDefaults {
    return this.#commandDefaults
  }

  set commandDefaults({ cwd, user }: CommandDefaults) {
    // Without a root of its own the sandbox has neither the directory nor the user.
    this.#commandDefaults = this.plan.root ? { cwd, user } : {}
  }

  /** Freezes the commands during the work, so that it reads a consistent state. */
  still<T>(work: () => Promise<T>): Promise<T> {
    const inside = this.#inside()
    if (canQuiesce(inside)) return inside.still(work)
    throw new SandboxError('unsupported', `the backend \`${this.backend}\` cannot snapshot`, {
      hint: 'choose a backend that can; see `ringfence doctor`',
    })
  }

  /** Lets the sandbox end by itself after this time unless the lease is renewed; without effect where its backend cannot. */
  lease(ms: number): void {
    const { inside } = this.#parts
    if (inside && canLease(inside)) inside.lease(ms)
  }

  /** Copies the disk of a sandbox with a writable root to a file. */
  copyDisk(to: string): Promise<void> {
    const inside = this.#inside()
    if (ownsDisk(inside)) return inside.copyDisk(to)
    throw new SandboxError('unsupported', `the backend \`${this.backend}\` cannot snapshot a disk`)
  }

  #freezable(what: string): BackendSandbox & Freezable {
    const inside = this.#inside()
    if (canFreeze(inside)) return inside
    throw new SandboxError('unsupported', `${this.backend} cannot ${what} a sandbox`)
  }

  /** Changes the hosts that a running sandbox may reach, with immediate effect. */
  async setAllowHosts(hosts: readonly string[]): Promise<void> {
    this.#assertAlive()
    const { egress } = this.#parts
    if (!egress)
      throw new SandboxError('wrong-state', `sandbox ${this.id} does not have network mode \`fetch\``, {
        hint: 'create it with network mode fetch',
      })
    this.#parts.judgeHosts(hosts)
    await this.#record.hosts(hosts)
    egress.setAllowHosts(hosts)
    this.#questions?.forget()
    this.#approvedHosts.length = 0
    this.#allowHosts = hosts
  }

  #hostQuestions({ egress, askHost, id, plan }: SandboxParts): HostQuestions | undefined {
    if (!egress || !askHost) return undefined
    const questions = new HostQuestions({
      ask: (question) => askHost({ ...question, sandboxId: id, agentId: plan.agentId }),
      allow: (entry) => {
        egress.allowAlso(entry)
        this.#approvedHosts.push(entry)
      },
      asked: (host) => this.#record.askedHost(host),
      answered: (host, answer) => this.#record.answeredHost(host, answer),
    })
    egress.onUnlisted = (target) => questions.admit(target)
    return questions
  }

  /** Hosts beside the list that a person approved for this sandbox; a fork or snapshot does not take them over. */
  get approvedHosts(): readonly string[] {
    return this.#approvedHosts
  }

  /** Changes the headers that the proxy sets in requests. SECURITY: values are not recorded; they may be credentials. */
  setHeaders(spec: Spec): void {
    this.#assertAlive()
    this.#parts.egress?.setHeaders(spec)
  }

  /** The hosts that the sandbox may reach now. */
  get allowHosts(): readonly string[] {
    return this.#allowHosts ?? this.plan.network.allowHosts
  }

  /** The policy's verdict for each allowed host: a host on the list may still be unreachable. */
  get hostVerdicts(): readonly HostVerdict[] {
    return this.#parts.egress?.verdicts(this.allowHosts) ?? []
  }

  /** The latest connections through the proxy, allowed and refused. */
  get connections(): readonly Connection[] {
    return this.#parts.egress?.connections ?? []
  }

  /** Resolves with the reason when the sandbox has ended, by `close` or by itself. */
  get ended(): Promise<string> {
    return this.#parts.inside?.ended ?? new Promise(() => {})
  }

  #ended(reason: string): void {
    if (this.#state !== 'ready') return
    // Nothing can run in the sandbox any more; `close` cleans up and records the end.
    this.#lost = reason
  }

  /** Authorizes and records a command that runs elsewhere. */
  admit(command: AskedCommand, asking: AuthorizeOptions = {}): Promise<Decision> {
    return this.#permits.decide(command, this.#parts.newId('ex'), asking)
  }

  #inside(): BackendSandbox {
    this.#assertAlive()
    if (!this.#parts.inside)
      throw new SandboxError('wrong-state', `sandbox ${this.id} does not run commands itself`)
    return this.#parts.inside
  }

  /** Called if the sandbox could not be started, so that the cached probe is discarded. */
  onFailedLaunch(action: () => void): void {
    this.#failedLaunch = action
  }

  /** Called once, after the sandbox is closed. */
  onClose(action: () => Promise<void>): void {
    this.#closing.push(action)
  }

  /** Records that the sandbox exists, for callers that run no command. */
  recorded(): Promise<void> {
    return this.#record.write()
  }

  /** Ends the sandbox. Calling it again has no effect. */
  async close(): Promise<void> {
    if (this.#state === 'ready') await this.#end([])
  }

  /** The limits that hold for all of its commands. */
  get limits(): Limits {
    return { ...this.plan.limits, ...this.#parts.inside?.ownLimits }
  }

  /** Whether another server could go on with this sandbox. */
  get outlives(): boolean {
    const { inside } = this.#parts
    return inside !== undefined && canDetach(inside)
  }

  /** Ends the sandbox without a record: this server may not write any, or another one takes the sandbox over. */
  async abandon(): Promise<void> {
    if (this.#state !== 'ready') return
    this.#state = 'destroyed'
    const { inside } = this.#parts
    await (inside && canDetach(inside) ? inside.detach() : inside?.close())
    await this.#parts.egress?.close()
    await Promise.all(this.#closing.splice(0).map((action) => action()))
  }

  /** Ends every process and keeps the private directories, so that the sandbox can be opened again. */
  async suspend(): Promise<void> {
    this.#assertAlive()
    this.#state = 'destroyed'
    await this.#parts.inside?.close()
    await this.#parts.egress?.close()
    this.#closing.splice(0)
    await this.#record.state('paused', 'only the files are kept')
  }

  /** Ends the sandbox; the last events are appended together, so that they share one write to disk. */
  async #end(events: readonly Event[]): Promise<void> {
    this.#state = 'destroyed'
    await this.#parts.inside?.close()
    await this.#parts.egress?.close()
    await this.review?.settle()
    const written = this.#record.destroyed(events, this.#lost)
    await Promise.all([written, ...this.#closing.splice(0).map((action) => action())])
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  #assertAlive(): void {
    if (this.#state !== 'ready') throw new SandboxError('wrong-state', `sandbox ${this.id} is ${this.#state}`)
  }
}

/** Where commands start that name no directory, and as whom: what the template of the sandbox says. */
export type CommandDefaults = { readonly cwd?: string | undefined; readonly user?: string | undefined }

/** Without a root user there is one user, whatever its name is. */
function assertUser(plan: Plan, user: string | undefined): void {
  if (user === undefined || user === 'user' || plan.root) return
  throw new SandboxError('invalid-input', `there is no user \`${user.slice(0, 32)}\` in this sandbox`, {
    hint: 'a sandbox with a writable root has a root user; in this one everything runs as one user',
  })
}

function finished(result: ExecResult, execId: string, decision: Decision): Executed {
  const hint = networkHint(decision, result.outcome)
  return { ...result, execId, decision, ...(hint === undefined ? {} : { hint }) }
}

function ioOf(
  { stdin, output, signal, last, limits, onStarted }: ExecOptions,
  permit: Promise<unknown>,
): ExecIo {
  return {
    permit,
    last,
    limits,
    onStarted,
    stdin: typeof stdin === 'string' && stdin !== 'inherit' ? Buffer.from(stdin) : stdin,
    output,
    signal,
  }
}
