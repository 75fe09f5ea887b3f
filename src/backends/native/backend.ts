import { connectLoopback } from '../../host/net/loopback.ts'
import { type RunningProcess, type RunResult, run, startProcess } from '../../host/process/run.ts'
import type { Launch } from '../../host/process/spawn.ts'
import type { Command, ExecResult, Outcome } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { isPlan, type Plan } from '../../model/plan.ts'
import type {
  Backend,
  BackendSandbox,
  ExecIo,
  Probe,
  RunningCommand,
  StartIo,
  Wrapped,
  Wrapper,
} from '../backend.ts'
import { nativeFiles } from './files.ts'

/**
 * No isolation: the command runs on the host with the host's environment. Used only by name, and audited.
 * It is also the control of every attack test: an attack that fails here proves nothing about other backends.
 */
export function native(hostEnv: Readonly<Record<string, string>>): Backend & Wrapper {
  return {
    name: 'native',
    level: 'native',
    byNameOnly: true,
    emulated: false,
    probe: async (): Promise<Probe> => ({
      available: true,
      guarantees: ['limit.wall', 'limit.idle', 'limit.output'],
      startMs: 0,
    }),
    async open(plan: Plan): Promise<BackendSandbox> {
      if (!isPlan(plan)) throw new SandboxError('internal', 'a backend accepts only plans that policy made')
      return sandboxOf(plan, hostEnv)
    },
    wrap: async (plan: Plan, command: Command): Promise<Wrapped> => ({
      command: command.argv[0],
      args: command.argv.slice(1),
      env: { ...hostEnv, ...command.env },
      cwd: command.cwd ?? plan.cwd,
      dispose: async () => {},
    }),
  }
}

function sandboxOf(plan: Plan, hostEnv: Readonly<Record<string, string>>): BackendSandbox {
  let isEnded: (reason: string) => void = () => {}
  const ended = new Promise<string>((resolve) => {
    isEnded = resolve
  })
  const launchOf = (command: Command): Launch => {
    const [file, ...args] = command.argv
    const env = { ...plan.env, ...hostEnv, ...command.env }
    return { file, args, env, cwd: command.cwd ?? plan.cwd, control: false }
  }
  return {
    async exec(command: Command, io: ExecIo = {}): Promise<ExecResult> {
      await io.permit
      const result = run(launchOf(command), { ...plan.limits, ...io.limits }, io)
      return execResult(await result.catch(missingProgram(command.argv[0])))
    },
    async start(command: Command, io: StartIo = {}): Promise<RunningCommand> {
      if (io.terminal) throw new SandboxError('unsupported', 'native does not support terminals')
      await io.permit
      const { signal, output } = io
      const streams = { signal, output, stdin: io.stdin ? ('pipe' as const) : undefined }
      return runningOf(startProcess(launchOf(command), { ...plan.limits, ...io.limits }, streams), command)
    },
    files: nativeFiles((argv, io) => run(launchOf({ argv }), {}, io)),
    connect: connectLoopback,
    layers: async () => [],
    ended,
    close: async () => isEnded('closed'),
  }
}

function execResult(result: RunResult): ExecResult {
  const { stdout, stderr, truncated, durationMs } = result
  return { outcome: outcomeOf(result), stdout, stderr, truncated, durationMs, violations: [], layers: [] }
}

function runningOf(running: RunningProcess, command: Command): RunningCommand {
  const result = running.result.catch(missingProgram(command.argv[0])).then(execResult)
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

/** A missing program ends with code 127, as in a shell. */
function missingProgram(file: string): (error: unknown) => RunResult {
  return (error) => {
    const code = ((error as Error).cause as NodeJS.ErrnoException | undefined)?.code
    if (code !== 'ENOENT' && code !== 'EACCES') throw error
    const stderr = Buffer.from(
      `ringfence: ${file}: ${code === 'ENOENT' ? 'command not found' : 'permission denied'}\n`,
    )
    const exit = { code: code === 'ENOENT' ? 127 : 126, signal: null }
    return {
      exit,
      stopped: undefined,
      stdout: new Uint8Array(),
      stderr,
      truncated: false,
      durationMs: 0,
      frames: [],
    }
  }
}

function outcomeOf({ stopped, exit }: RunResult): Outcome {
  if (stopped) return { kind: 'stopped', limit: stopped }
  return exit.signal ? { kind: 'signaled', signal: exit.signal } : { kind: 'exited', code: exit.code ?? 1 }
}
