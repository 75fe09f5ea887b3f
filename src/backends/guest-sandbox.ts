import { normalize } from 'node:path/posix'
import type { Duplex } from 'node:stream'
import type { GuestProcess } from '../host/guest/process.ts'
import type { Session } from '../host/guest/session.ts'
import type { Command, ExecResult } from '../model/command.ts'
import { SandboxError } from '../model/errors.ts'
import type { Plan } from '../model/plan.ts'
import type {
  BackendSandbox,
  ExecIo,
  Freezable,
  Leasable,
  Quiescable,
  RunningCommand,
  StartIo,
  Usage,
} from './backend.ts'
import {
  type CommandParts,
  execBy,
  GuestCommand,
  type LimitEnforcement,
  timeLimits,
} from './guest-command.ts'
import { guestFiles, type RunBuiltin, type SharedFiles } from './guest-files.ts'
import { isIsolated, isolationFields, PortOwners, secretsOf } from './isolated-command.ts'

/** What a backend adds to a session with the guest agent. */
export type GuestTransport = LimitEnforcement & {
  /** The channel; created at first use. */
  readonly session: () => Promise<Session>
  /** The active layers, from the agent's report. */
  readonly layersOf: (status: ReadonlyMap<string, string>) => readonly string[]
  readonly usage?: () => Usage | undefined
  /** The first process of the sandbox that the host sees, if it sees any. */
  readonly hostPid?: () => number | undefined
  /** Called with the number of commands before a command starts and after it has ended. */
  readonly onCommands?: ((running: number) => void) | undefined
  readonly ended: Promise<string>
  readonly close: () => Promise<void>
}

/** A sandbox with our agent in it: bubblewrap, containers and virtual machines. */
export class GuestSandbox implements BackendSandbox, Freezable, Quiescable, Leasable {
  readonly files: SharedFiles
  readonly ended: Promise<string>
  readonly #plan: Plan
  readonly #transport: GuestTransport
  readonly #ports = new PortOwners()
  #closed = false
  #paused = false
  #running = 0

  constructor(plan: Plan, transport: GuestTransport) {
    this.#plan = plan
    this.#transport = transport
    this.ended = transport.ended
    const filesOf = (owner: string): SharedFiles =>
      guestFiles(
        (argv, io) => this.#builtin(argv, io, owner),
        (path) => isGranted(plan, path),
        filesOf,
      )
    this.files = filesOf('user')
  }

  exec(command: Command, io: ExecIo = {}): Promise<ExecResult> {
    return execBy((asked) => this.start(command, asked), io)
  }

  async start(command: Command, io: StartIo = {}): Promise<RunningCommand> {
    this.#assertOpen()
    io.permit?.catch(() => {})
    const session = await this.#session(io.permit)
    const status = await session.ready
    const limits = { ...timeLimits(this.#plan.limits), ...io.limits }
    const guest = new GuestCommand(limits, io, this.#transport, this.#transport.layersOf(status))
    const fields = [
      ...isolationFields(this.#plan, command),
      ...fieldsOf(command, io, guest.isHeld, this.#plan.root !== undefined),
    ]
    const secrets = secretsOf(this.#plan, command)
    const pace = io.output === undefined ? 'result' : 'stream'
    const ports = this.#ports.reserve(command.ports ?? [])
    const host: CommandParts = {
      start: (onOutput, onSudo) => {
        const process = session.start({ fields, onOutput, pace, onSudo, secrets })
        ports.given(process)
        return process
      },
      lose: (why) => session.close(why),
    }
    guest.result.then(ports.release, ports.release)
    await this.#counted(() => guest.start(host), guest.result).catch((error: Error) => {
      ports.release()
      throw error
    })
    return guest
  }

  async connect(port: number): Promise<Duplex> {
    this.#assertOpen()
    const owner = isIsolated(this.#plan) ? this.#ports.ownerOf(port) : undefined
    const session = await this.#transport.session()
    await session.ready
    return session.connect(port, owner)
  }

  async layers(): Promise<readonly string[]> {
    this.#assertOpen()
    return this.#transport.layersOf(await (await this.#transport.session()).ready)
  }

  /** What the agent read from the kernel when it was ready. */
  async status(): Promise<ReadonlyMap<string, string>> {
    return (await this.#transport.session()).ready
  }

  usage(): Usage | undefined {
    return this.#transport.usage?.()
  }

  hostPid(): number | undefined {
    return this.#transport.hostPid?.()
  }

  /** Freezes all processes; nothing new starts until `resume`. */
  async pause(): Promise<void> {
    this.#assertOpen()
    const session = await this.#transport.session()
    await session.ready
    // Frozen processes do nothing, and the time of a paused machine is not ours.
    session.lease(0)
    session.freeze(true)
    this.#paused = true
  }

  async resume(): Promise<void> {
    if (this.#closed || !this.#paused) throw new SandboxError('wrong-state', 'the sandbox is not paused')
    ;(await this.#transport.session()).freeze(false)
    this.#paused = false
  }

  /** Freezes all commands; the agent and its file operations continue. */
  async still<T>(work: () => Promise<T>): Promise<T> {
    this.#assertOpen()
    const session = await this.#transport.session()
    await session.ready
    session.freeze(true)
    try {
      return await work()
    } finally {
      session.freeze(false)
    }
  }

  lease(ms: number): void {
    if (this.#closed || this.#paused) return
    this.#transport.session().then(
      (session) => this.#paused || session.lease(ms),
      () => {},
    )
  }

  get isPaused(): boolean {
    return this.#paused
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.#transport.close()
  }

  /** A setup failure is reported only to callers that are permitted to start a command. */
  async #session(permit: Promise<unknown> | undefined): Promise<Session> {
    try {
      return await this.#transport.session()
    } catch (error) {
      await permit
      throw error
    }
  }

  /** A command counts from before it starts until it has ended or failed to start. */
  async #counted<T>(start: () => Promise<T>, ended: Promise<unknown>): Promise<T> {
    this.#transport.onCommands?.(++this.#running)
    const release = (): void => this.#transport.onCommands?.(--this.#running)
    try {
      const started = await start()
      ended.then(release, release)
      return started
    } catch (error) {
      release()
      throw error
    }
  }

  #assertOpen(): void {
    if (this.#closed) throw new SandboxError('wrong-state', 'the sandbox is closed')
    if (this.#paused)
      throw new SandboxError('wrong-state', 'the sandbox is paused', { hint: 'resume it first' })
  }

  /** In a sandbox with a root user a file operation has root's rights, and what it creates belongs to the owner. */
  async #builtin(
    argv: Parameters<RunBuiltin>[0],
    { input, output, signal }: Parameters<RunBuiltin>[1],
    owner: string,
  ): Promise<number> {
    this.#assertOpen()
    const session = await this.#transport.session()
    await session.ready
    const users = this.#plan.root ? ['as', 'root', 'owner', owner] : []
    const fields = [
      'builtin',
      ...users,
      ...argv.flatMap((word) => ['argv', word]),
      ...(input ? ['input'] : []),
    ]
    this.#transport.onCommands?.(++this.#running)
    const guest = session.start({ fields, onOutput: output })
    const stop = (): void => guest.kill()
    signal?.addEventListener('abort', stop, { once: true })
    if (signal?.aborted) stop()
    try {
      await guest.started
      if (input) await feed(guest, input)
      const { exit, lost } = await guest.ended
      if (lost !== undefined) throw new SandboxError('wrong-state', `the sandbox is gone: ${lost}`)
      return exit && !exit.signaled ? exit.code : 1
    } finally {
      this.#transport.onCommands?.(--this.#running)
      signal?.removeEventListener('abort', stop)
    }
  }
}

const isGranted = (plan: Plan, path: string): boolean =>
  plan.root !== undefined ||
  [...plan.mounts.map(({ target }) => target), '/tmp'].some(
    (root) => normalize(path) === root || normalize(path).startsWith(root === '/' ? '/' : `${root}/`),
  )

async function feed(
  guest: GuestProcess,
  input: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
): Promise<void> {
  let isRefused = false
  try {
    for await (const chunk of input) {
      isRefused = true
      await guest.write(chunk)
      isRefused = false
    }
    guest.endInput()
  } catch (error) {
    // The operation reports why it stopped reading; a source that failed ends the operation.
    if (isRefused && error instanceof SandboxError) return
    guest.kill()
    throw error
  }
}

function fieldsOf(command: Command, io: StartIo, held: boolean, hasUsers: boolean): readonly string[] {
  const { terminal } = io
  return [
    ...command.argv.flatMap((word) => ['argv', word]),
    ...Object.entries(command.env ?? {}).flatMap(([name, value]) => ['env', `${name}=${value}`]),
    ...(command.cwd === undefined ? [] : ['cwd', command.cwd]),
    ...(command.user === undefined || !hasUsers ? [] : ['as', command.user]),
    ...(io.stdin || terminal ? ['input'] : []),
    ...(terminal ? ['terminal', String(terminal.cols), String(terminal.rows)] : []),
    ...(held ? ['wait-for-start'] : []),
  ]
}
