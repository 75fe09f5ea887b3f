import { readFileSync, writeFileSync } from 'node:fs'
import { type RunResult, run } from '../../host/spawn.ts'
import type { Command, ExecResult, Outcome } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { isPlan, type Plan } from '../../model/plan.ts'
import type { Backend, BackendSandbox, ExecIo, Probe, Wrapped, Wrapper } from '../backend.ts'

/**
 * No wall at all: the command runs on the host with the host's environment. Taken only by name, and audited.
 * It is also the control of every proof: an attack that fails here proves nothing elsewhere.
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
  return {
    async exec(command: Command, io?: ExecIo): Promise<ExecResult> {
      await io?.permit
      const [file, ...args] = command.argv
      const env = { ...plan.env, ...hostEnv, ...command.env }
      const launch = { file, args, env, cwd: command.cwd ?? plan.cwd, control: false }
      const result = await run(launch, plan.limits, io).catch(missingProgram(file))
      const { stdout, stderr, truncated, durationMs } = result
      return { outcome: outcomeOf(result), stdout, stderr, truncated, durationMs, violations: [], layers: [] }
    },
    read: async (path) => readFileSync(path),
    write: async (path, data) => writeFileSync(path, data),
    close: async () => {},
  }
}

/** A program that is not there ends the way it does in a shell. */
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
