import type { Duplex } from 'node:stream'
import type { StartedProcess } from '../../host/guest/process.ts'
import type { Command, ExecResult } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Guarantee } from '../../model/guarantee.ts'
import type { Plan } from '../../model/plan.ts'
import type { Limits } from '../../model/spec.ts'
import type {
  BackendSandbox,
  ExecIo,
  GuestFiles,
  OutputStream,
  RunningCommand,
  StartIo,
  TerminalSize,
} from '../backend.ts'
import { execBy, GuestCommand, timeLimits } from '../guest-command.ts'

/**
 * What a machine of somebody else's keeps as far as this side can see: nothing of this host is there but what was sent.
 * What is not on this list nobody here can look at, so a plan that needs it is refused. Times are not on it: the command
 * itself is ended, but whether everything that it started went along only the other machine knows.
 */
export const REMOTE_CLAIMS: readonly Guarantee[] = [
  'fs.read',
  'fs.write',
  'fs.protect',
  'env.clean',
  'net.offline',
  'net.loopback',
  'proc.hidden',
  'ipc.private',
  'limit.output',
  'cleanup',
]

/** One command for a machine that is not ours. */
export type RemoteRequest = {
  readonly argv: readonly string[]
  readonly env: Readonly<Record<string, string>>
  readonly cwd: string
  readonly stdin: boolean
  readonly terminal?: TerminalSize | undefined
  /** Nothing goes out before `release`. */
  readonly held: boolean
  readonly onOutput: (stream: OutputStream, chunk: Uint8Array) => unknown
}

/** A sandbox that somebody else keeps for us. */
export type RemoteTransport = {
  readonly start: (request: RemoteRequest) => StartedProcess
  readonly files: GuestFiles
  readonly connect: (port: number) => Promise<Duplex>
  /** What the keeper says of its own walls; nobody here can look. */
  readonly layers: readonly string[]
  readonly ended: Promise<string>
  readonly close: () => Promise<void>
}

/** Time, silence and output are held here, by whoever reads; everything else is the keeper's. */
export class RemoteSandbox implements BackendSandbox {
  readonly files: GuestFiles
  readonly ended: Promise<string>
  readonly #plan: Plan
  readonly #place: RemoteTransport
  #closed = false

  constructor(plan: Plan, place: RemoteTransport) {
    this.#plan = plan
    this.#place = place
    this.ended = place.ended
    this.files = place.files
  }

  exec(command: Command, io: ExecIo = {}): Promise<ExecResult> {
    return execBy((asked) => this.start(command, asked), io)
  }

  async start(command: Command, io: StartIo = {}): Promise<RunningCommand> {
    if (this.#closed) throw new SandboxError('wrong-state', 'the sandbox is closed')
    io.permit?.catch(() => {})
    const limits: Limits = { ...timeLimits(this.#plan.limits), ...io.limits }
    const guest = new GuestCommand(limits, io, UNCOUNTED, this.#place.layers)
    await guest.start({
      start: (onOutput) => this.#place.start(this.#request(command, io, guest.isHeld, onOutput)),
      // What cannot be told to go now is ended by its keeper, when nothing uses it any more.
      lose: () => void this.close().catch(() => {}),
    })
    return guest
  }

  #request(command: Command, io: StartIo, held: boolean, onOutput: RemoteRequest['onOutput']): RemoteRequest {
    return {
      argv: command.argv,
      env: { ...this.#plan.env, ...command.env },
      cwd: command.cwd ?? this.#plan.cwd,
      stdin: Boolean(io.stdin ?? io.terminal),
      terminal: io.terminal,
      held,
      onOutput,
    }
  }

  connect(port: number): Promise<Duplex> {
    return this.#place.connect(port)
  }

  async layers(): Promise<readonly string[]> {
    return this.#place.layers
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.#place.close()
  }
}

/** No kernel of ours counts anything for a command that runs elsewhere. */
const UNCOUNTED = { counts: () => ({ oomKills: 0, pidsRefused: 0 }) }
