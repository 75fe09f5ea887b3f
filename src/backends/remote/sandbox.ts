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
 * The guarantees of a remote machine that this side can vouch for: it has nothing of this host except what was sent.
 * Other guarantees cannot be verified from here, so a plan that needs one is rejected. Time limits are not included: the
 * command itself is killed, but only the other machine knows whether its descendants are.
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

/** One command for a remote machine. */
export type RemoteRequest = {
  readonly argv: readonly string[]
  readonly env: Readonly<Record<string, string>>
  readonly cwd: string
  readonly stdin: boolean
  readonly terminal?: TerminalSize | undefined
  /** The command is not sent before `release`. */
  readonly held: boolean
  readonly onOutput: (stream: OutputStream, chunk: Uint8Array) => unknown
}

/** A remote sandbox; implemented by each remote backend. */
export type RemoteTransport = {
  readonly start: (request: RemoteRequest) => StartedProcess
  readonly files: GuestFiles
  readonly connect: (port: number) => Promise<Duplex>
  /** The layers that the remote service claims; they cannot be verified. */
  readonly layers: readonly string[]
  readonly ended: Promise<string>
  readonly close: () => Promise<void>
}

/** Limits of time, silence and output are enforced here, by the reader; the remote service enforces everything else. */
export class RemoteSandbox implements BackendSandbox {
  readonly files: GuestFiles
  readonly ended: Promise<string>
  readonly #plan: Plan
  readonly #transport: RemoteTransport
  #closed = false

  constructor(plan: Plan, transport: RemoteTransport) {
    this.#plan = plan
    this.#transport = transport
    this.ended = transport.ended
    this.files = transport.files
  }

  exec(command: Command, io: ExecIo = {}): Promise<ExecResult> {
    return execBy((asked) => this.start(command, asked), io)
  }

  async start(command: Command, io: StartIo = {}): Promise<RunningCommand> {
    if (this.#closed) throw new SandboxError('wrong-state', 'the sandbox is closed')
    io.permit?.catch(() => {})
    const limits: Limits = { ...timeLimits(this.#plan.limits), ...io.limits }
    const guest = new GuestCommand(limits, io, UNCOUNTED, this.#transport.layers)
    await guest.start({
      start: (onOutput) => this.#transport.start(this.#request(command, io, guest.isHeld, onOutput)),
      // A sandbox that cannot be destroyed now is ended by the remote service when it is idle.
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
    return this.#transport.connect(port)
  }

  async layers(): Promise<readonly string[]> {
    return this.#transport.layers
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.#transport.close()
  }
}

/** The local kernel counts nothing for a remote command. */
const UNCOUNTED = { counts: () => ({ oomKills: 0, pidsRefused: 0 }) }
