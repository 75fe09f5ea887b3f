import { mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { monotonicMs } from '../../host/clock.ts'
import { connectLoopback, type LoopbackPort, listenLoopback } from '../../host/net/loopback.ts'
import { type RunResult, run, startProcess } from '../../host/process/run.ts'
import type { Launch } from '../../host/process/spawn.ts'
import type { Command, ExecResult, Outcome } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Guarantee } from '../../model/guarantee.ts'
import { isPlan, type Plan } from '../../model/plan.ts'
import type {
  Backend,
  BackendSandbox,
  ExecIo,
  GuestFiles,
  OpenOptions,
  Probe,
  RunningCommand,
  StartIo,
} from '../backend.ts'
import {
  fileInScratch,
  profileOf,
  type SeatbeltContext,
  seatbeltArgs,
  seatbeltEnvironment,
} from './launch.ts'

const PROGRAM = '/usr/bin/sandbox-exec'

/** The guarantees of the profile. Processes, IPC, the kernel's attack surface and kernel limits are not included. */
const CLAIMS: readonly Guarantee[] = [
  'fs.read',
  'fs.write',
  'fs.protect',
  'env.clean',
  'net.offline',
  'net.fetch',
  'secrets.outside',
  'limit.wall',
  'limit.idle',
  'limit.output',
]

/** What the Seatbelt backend is made of. */
export type SeatbeltParts = { readonly platform: string; readonly probePlan: () => Plan }

/** macOS's own sandbox. Not tested on macOS yet: see the README beside this file. */
export function seatbelt({ platform, probePlan }: SeatbeltParts): Backend {
  const open = async (plan: Plan, options: OpenOptions = {}): Promise<BackendSandbox> => {
    if (!isPlan(plan)) throw new SandboxError('internal', 'a backend accepts only plans that policy made')
    if (platform !== 'darwin') throw new SandboxError('backend-unavailable', 'seatbelt needs macOS')
    return SeatbeltSandbox.open(plan, options)
  }
  return {
    name: 'seatbelt',
    level: 'os',
    byNameOnly: false,
    emulated: false,
    open,
    probe: async () =>
      platform === 'darwin'
        ? probeWith(() => open(probePlan()))
        : { available: false, reason: 'needs macOS', fix: 'use another backend' },
  }
}

async function probeWith(open: () => Promise<BackendSandbox>): Promise<Probe> {
  const started = monotonicMs()
  try {
    const sandbox = await open()
    const { outcome } = await sandbox.exec({ argv: ['/usr/bin/true'] }).finally(() => sandbox.close())
    if (outcome.kind !== 'exited' || outcome.code !== 0) throw new Error('the probe command failed')
    return { available: true, guarantees: CLAIMS, startMs: monotonicMs() - started }
  } catch (error) {
    return { available: false, reason: (error as Error).message, fix: 'check that sandbox-exec works here' }
  }
}

class SeatbeltSandbox implements BackendSandbox {
  readonly files: GuestFiles = unsupportedFiles()
  readonly ended: Promise<string>
  readonly #plan: Plan
  readonly #context: SeatbeltContext
  readonly #profile: string
  readonly #proxy: LoopbackPort | undefined
  readonly #stops = new Set<AbortController>()
  #isEnded: (reason: string) => void = () => {}

  private constructor(plan: Plan, context: SeatbeltContext, proxy: LoopbackPort | undefined) {
    this.#plan = plan
    this.#context = context
    this.#proxy = proxy
    this.#profile = profileOf(plan, context)
    this.ended = new Promise((resolve) => {
      this.#isEnded = resolve
    })
  }

  static async open(plan: Plan, { onTunnel }: OpenOptions): Promise<SeatbeltSandbox> {
    const fetches = plan.network.mode === 'fetch'
    if (fetches && !onTunnel) throw new SandboxError('internal', 'network mode fetch needs a proxy')
    const proxy = fetches && onTunnel ? await listenLoopback(onTunnel) : undefined
    const scratch = realpathSync(mkdtempSync(join(tmpdir(), 'ringfence-')))
    try {
      for (const file of plan.files) writeFileSync(fileInScratch(scratch, file.target), file.text)
      return new SeatbeltSandbox(plan, { scratch, proxyPort: proxy?.port }, proxy)
    } catch (error) {
      proxy?.close()
      rmSync(scratch, { recursive: true, force: true })
      throw error
    }
  }

  async exec(command: Command, io: ExecIo = {}): Promise<ExecResult> {
    await io.permit
    const stop = this.#stopWith(io.signal)
    try {
      return resultOf(
        await run(
          this.#launch(command),
          { ...this.#plan.limits, ...io.limits },
          { ...io, signal: stop.signal },
        ),
      )
    } finally {
      this.#stops.delete(stop)
    }
  }

  async start(command: Command, io: StartIo = {}): Promise<RunningCommand> {
    if (io.terminal) throw new SandboxError('unsupported', 'seatbelt does not support terminals')
    await io.permit
    const stop = this.#stopWith(io.signal)
    const streams = {
      output: io.output,
      signal: stop.signal,
      stdin: io.stdin ? ('pipe' as const) : undefined,
    }
    const running = startProcess(this.#launch(command), { ...this.#plan.limits, ...io.limits }, streams)
    const result = running.result.then(resultOf).finally(() => this.#stops.delete(stop))
    result.catch(() => {})
    return {
      pid: running.pid,
      result,
      write: (data) => running.write(data),
      endInput: () => running.endInput(),
      signal: (signal) => running.signal(signal),
      resize: () => {},
    }
  }

  connect = connectLoopback

  /** The requested layers; macOS offers no way to read them back. */
  async layers(): Promise<readonly string[]> {
    return ['seatbelt']
  }

  async close(): Promise<void> {
    for (const stop of this.#stops) stop.abort()
    this.#proxy?.close()
    rmSync(this.#context.scratch, { recursive: true, force: true })
    this.#isEnded('closed')
  }

  #launch(command: Command): Launch {
    return {
      file: PROGRAM,
      args: seatbeltArgs(this.#profile, command),
      env: seatbeltEnvironment(this.#plan, command, this.#context),
      cwd: command.cwd ?? this.#plan.cwd,
      control: false,
    }
  }

  #stopWith(signal: AbortSignal | undefined): AbortController {
    const stop = new AbortController()
    this.#stops.add(stop)
    if (signal?.aborted) stop.abort()
    signal?.addEventListener('abort', () => stop.abort(), { once: true })
    return stop
  }
}

function resultOf(result: RunResult): ExecResult {
  const { stdout, stderr, truncated, durationMs, stopped, exit } = result
  const ended: Outcome = exit.signal
    ? { kind: 'signaled', signal: exit.signal }
    : { kind: 'exited', code: exit.code ?? 1 }
  const outcome: Outcome = stopped ? { kind: 'stopped', limit: stopped } : ended
  return { outcome, stdout, stderr, truncated, durationMs, violations: [], layers: ['seatbelt'] }
}

/** SECURITY: the host would carry them out without isolation, so they are not supported. */
function unsupportedFiles(): GuestFiles {
  const refuse = (): never => {
    throw new SandboxError('unsupported', 'seatbelt does not support file operations', {
      hint: 'use commands',
    })
  }
  const later = async (): Promise<never> => refuse()
  return {
    read: refuse,
    pack: refuse,
    write: later,
    list: later,
    stat: later,
    makeDir: later,
    move: later,
    remove: later,
    watch: later,
    unpack: later,
  }
}
