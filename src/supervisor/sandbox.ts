import type { Backend, BackendSandbox, ExecIo } from '../backends/backend.ts'
import type { ExecResult, Outcome } from '../model/command.ts'
import type { Decision } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import { type Event, type EventSink, VIOLATION_TYPE } from '../model/event.ts'
import type { Level } from '../model/guarantee.ts'
import type { Plan } from '../model/plan.ts'
import { redact } from '../model/redact.ts'
import { approvedUnchanged } from './approvals.ts'
import type { AskedCommand } from './gate.ts'

export type ExecOptions = {
  /** A guest path; the workspace when absent. */
  readonly cwd?: string
  readonly env?: Readonly<Record<string, string>>
  readonly stdin?: 'inherit' | Uint8Array | string
  readonly output?: ExecIo['output']
  readonly signal?: AbortSignal
  /** Nothing comes after it: the sandbox is closed with the same stroke. */
  readonly last?: boolean
  /** Answers `ask`: true once a human has approved this very command. */
  readonly approve?: (decision: Decision) => boolean | Promise<boolean>
}

export type Executed = ExecResult & { readonly execId: string; readonly decision: Decision }

type Parts = {
  readonly id: string
  readonly plan: Plan
  readonly backend: Backend
  /** Absent when the caller starts the process itself. */
  readonly inside: BackendSandbox | undefined
  readonly trail: EventSink
  readonly newId: (prefix: string) => string
  readonly judge: (command: AskedCommand, cwd?: string) => Promise<Decision>
}

/** One isolated place. Every command in it is judged before it runs and recorded before and after. */
export class Sandbox implements AsyncDisposable {
  readonly id: string
  readonly backend: string
  readonly level: Level
  readonly plan: Plan
  readonly files: SandboxFiles
  readonly #parts: Parts
  /** INVARIANT: flushed before a command starts; that the sandbox exists is on record before anything runs in it. */
  readonly #unwritten: Event[] = []
  readonly #closing: (() => Promise<void>)[] = []
  #failedLaunch: () => void = () => {}
  #state: 'ready' | 'destroyed' = 'ready'

  constructor(parts: Parts) {
    this.#parts = parts
    this.id = parts.id
    this.backend = parts.backend.name
    this.level = parts.backend.level
    this.plan = parts.plan
    this.files = new SandboxFiles(
      (operation, path) => this.#recordFile(operation, path),
      () => this.#inside(),
      (...command) => this.exec(command),
    )
    this.#unwritten.push(this.#event('SandboxState', { state: 'ready', ...summaryOf(parts) }))
  }

  /** Runs a shell line (text) or a program (list) and waits for its end. A non-zero exit is an outcome, not an error. */
  async exec(command: string | readonly string[], options: ExecOptions = {}): Promise<Executed> {
    this.#assertAlive()
    const asked = askedCommand(command)
    const execId = this.#parts.newId('ex')
    const argv: readonly [string, ...string[]] =
      'line' in asked ? ['/bin/bash', '-c', asked.line] : asked.argv
    const { cwd, env } = options
    const placed = { argv, ...(cwd === undefined ? {} : { cwd }), ...(env === undefined ? {} : { env }) }
    // The wall goes up while the command is judged and recorded; it starts only after both.
    const permit = this.#decide(asked, execId, options)
    try {
      // Settles only when nothing of the command is left, also when the permit was refused.
      const result = await this.#inside().exec(placed, ioOf(options, permit))
      const decision = await permit
      const events = this.#resultEvents(execId, result)
      await (options.last ? this.#end(events) : this.#write(...events))
      return { ...result, execId, decision }
    } catch (error) {
      const decided = await permit.then(
        () => true,
        () => false,
      )
      if (error instanceof SandboxError && error.code === 'launch-failed') this.#failedLaunch()
      if (decided)
        await this.#write(
          this.#event('Exec', { exec_id: execId, state: 'failed', reason: (error as Error).message }),
        )
      throw error
    }
  }

  /** Judges and records a command that runs elsewhere. */
  admit(command: AskedCommand): Promise<Decision> {
    return this.#decide(command, this.#parts.newId('ex'), {})
  }

  #inside(): BackendSandbox {
    this.#assertAlive()
    if (!this.#parts.inside) throw new SandboxError('wrong-state', `sandbox ${this.id} runs nothing itself`)
    return this.#parts.inside
  }

  /** Called when the wall could not be set up, so that nobody trusts an old probe. */
  onFailedLaunch(action: () => void): void {
    this.#failedLaunch = action
  }

  /** Called once, after the sandbox is gone. */
  onClose(action: () => Promise<void>): void {
    this.#closing.push(action)
  }

  async #decide(asked: AskedCommand, execId: string, options: ExecOptions): Promise<Decision> {
    const decision = await this.#parts.judge(asked, options.cwd)
    const approved = decision.action === 'ask' ? await this.#approve(asked, decision, options) : undefined
    const command = redact('line' in asked ? asked.line : asked.argv.join(' '))
    const { action, reason, rules } = decision
    await this.#write(
      this.#event('PolicyDecision', {
        exec_id: execId,
        subject: 'command',
        command,
        action,
        reason: redact(reason),
        rules,
      }),
      ...(approved === undefined ? [] : [this.#event('Approval', { exec_id: execId, approved })]),
    )
    if (action === 'deny') {
      throw new SandboxError('forbidden-command', reason, {
        hint: '`ringfence check command` shows every part and its rule',
      })
    }
    if (approved === false) {
      throw new SandboxError('approval-required', reason, {
        hint: 'approve it with --yes, or add a rule to the policy',
      })
    }
    return decision
  }

  /** SECURITY: an approval is for this program as it is; one that changes while a person thinks needs another. */
  async #approve(
    command: AskedCommand,
    decision: Decision,
    { approve, cwd, env }: ExecOptions,
  ): Promise<boolean> {
    const { plan } = this.#parts
    if (!approve) return false
    const asked = { command, cwd: cwd ?? plan.cwd, env: { ...plan.env, ...env }, decision }
    return approvedUnchanged(asked, () => approve(decision))
  }

  /** Files are touched by the host's hand: like a command, on record before it happens. */
  #recordFile(operation: 'read' | 'write', path: string): Promise<void> {
    const fields = { subject: 'file', operation, path, action: 'sandbox', reason: 'inside the wall' }
    return this.#write(this.#event('PolicyDecision', fields))
  }

  #resultEvents(execId: string, result: ExecResult): readonly Event[] {
    const { outcome, durationMs, truncated, layers, violations } = result
    const refusals = violations.map(({ guarantee, details }) =>
      this.#event('SandboxViolation', {
        exec_id: execId,
        violation_type: VIOLATION_TYPE[guarantee] ?? 'CapabilityDenied',
        guarantee,
        details: redact(details),
      }),
    )
    const end = this.#event('Exec', {
      exec_id: execId,
      state: 'ended',
      outcome: outcome as Outcome & { [key: string]: string | number },
      duration_ms: Math.round(durationMs),
      truncated,
      layers,
    })
    return [...refusals, end]
  }

  /** Puts on record that the sandbox exists, for callers to whom that alone matters. */
  recorded(): Promise<void> {
    return this.#write()
  }

  /** Ends the sandbox. Twice is harmless. */
  async close(): Promise<void> {
    if (this.#state === 'ready') await this.#end([])
  }

  /** The last records and whatever waits for the end are handed over together: they share one write to disk. */
  async #end(events: readonly Event[]): Promise<void> {
    this.#state = 'destroyed'
    await this.#parts.inside?.close()
    const written = this.#write(...events, this.#event('SandboxState', { state: 'destroyed' }))
    await Promise.all([written, ...this.#closing.splice(0).map((action) => action())])
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  #assertAlive(): void {
    if (this.#state !== 'ready') throw new SandboxError('wrong-state', `sandbox ${this.id} is ${this.#state}`)
  }

  async #write(...events: readonly Event[]): Promise<void> {
    const waiting = this.#unwritten.splice(0)
    try {
      // Handed over together they share one write to disk.
      await Promise.all([...waiting, ...events].map((event) => this.#parts.trail.append(event)))
    } catch (error) {
      this.#unwritten.unshift(...waiting)
      throw error
    }
  }

  #event(event: Event['event'], fields: Record<string, Event[string]>): Event {
    const { agentId } = this.#parts.plan
    return { event, sandbox_id: this.id, ...(agentId === undefined ? {} : { agent_id: agentId }), ...fields }
  }
}

function summaryOf({ plan, backend }: Parts): Record<string, Event[string]> {
  return {
    backend: backend.name,
    level: backend.level,
    preset: plan.preset,
    network: plan.network.mode,
    mounts: plan.mounts.map(({ real, target, mode }) => ({ source: real, target, mode })),
    waived: plan.waived,
  }
}

function askedCommand(command: string | readonly string[]): AskedCommand {
  if (typeof command === 'string') {
    if (command.trim() === '') throw new SandboxError('no-command', 'no command was given')
    if (command.includes('\0')) throw new SandboxError('invalid-input', 'the command holds a NUL character')
    return { line: command }
  }
  const [program, ...rest] = command
  if (program === undefined || program === '') throw new SandboxError('no-command', 'no command was given')
  if (command.some((word) => word.includes('\0')))
    throw new SandboxError('invalid-input', 'the command holds a NUL character')
  return { argv: [program, ...rest] }
}

function ioOf({ stdin, output, signal }: ExecOptions, permit: Promise<unknown>): ExecIo {
  return {
    permit,
    stdin: typeof stdin === 'string' && stdin !== 'inherit' ? Buffer.from(stdin) : stdin,
    output,
    signal,
  }
}

/** Files as the sandbox sees them: each operation crosses the wall like a command, so it can reach no more than one. */
export class SandboxFiles {
  readonly #record: (operation: 'read' | 'write', path: string) => Promise<void>
  readonly #inside: () => BackendSandbox
  readonly #exec: (...command: string[]) => Promise<ExecResult>

  constructor(
    record: (operation: 'read' | 'write', path: string) => Promise<void>,
    inside: () => BackendSandbox,
    exec: (...command: string[]) => Promise<ExecResult>,
  ) {
    this.#record = record
    this.#inside = inside
    this.#exec = exec
  }

  async read(path: string): Promise<Uint8Array> {
    await this.#record('read', path)
    return this.#inside().read(path)
  }

  async write(path: string, data: Uint8Array | string): Promise<void> {
    await this.#record('write', path)
    return this.#inside().write(path, typeof data === 'string' ? Buffer.from(data) : data)
  }

  async list(path: string): Promise<readonly string[]> {
    const result = await this.#run(path, 'find', path, '-mindepth', '1', '-maxdepth', '1', '-printf', '%f\\0')
    return Buffer.from(result.stdout).toString('utf8').split('\0').slice(0, -1).sort()
  }

  async stat(path: string): Promise<{
    readonly size: number
    readonly mode: number
    readonly kind: string
    readonly modifiedMs: number
  }> {
    const result = await this.#run(path, 'stat', '-c', '%s %a %F\t%Y', '--', path)
    const [head = '', time = '0'] = Buffer.from(result.stdout).toString('utf8').trim().split('\t')
    const [size = '0', mode = '0', ...kind] = head.split(' ')
    return {
      size: Number(size),
      mode: Number.parseInt(mode, 8),
      kind: kind.join(' '),
      modifiedMs: Number(time) * 1000,
    }
  }

  async remove(path: string): Promise<void> {
    await this.#run(path, 'rm', '-r', '--', path)
  }

  async #run(path: string, ...command: string[]): Promise<ExecResult> {
    const result = await this.#exec(...command)
    if (result.outcome.kind === 'exited' && result.outcome.code === 0) return result
    throw new SandboxError('path-traversal', `cannot reach \`${path}\` in the sandbox`)
  }
}
