import { SandboxError } from '../../model/errors.ts'
import { boolean, either, list, number, object, oneOf, optional, record, text } from '../../model/shape.ts'
import { clip } from '../capture.ts'
import { type CodeContext, LANGUAGES } from '../code-context.ts'
import { isRunning, type Process, waitFor } from '../processes.ts'
import { finishedResult, outcomeText, READ_CHARS } from '../results.ts'
import type { AgentSession } from '../session.ts'
import { guestPath } from './files.ts'
import { done, type Operation, operation, type Result, told } from './operation.ts'

const command = told(
  either(text(), list(text({ empty: true }))),
  'a shell line, or a list: program and arguments',
)
const cwd = optional(told(text({ max: 4096 }), 'directory to run in; default: the workspace'))
const env = optional(record(text({ empty: true }), /^[A-Za-z_][A-Za-z0-9_]*$/))
const timeout = optional(
  told(number({ integer: true, min: 1, max: 3_600_000 }), 'milliseconds; default: 120000'),
)
const processId = told(number({ integer: true, min: 1 }), 'from `process_start`')
const SIGNALS = ['SIGTERM', 'SIGKILL', 'SIGINT', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2'] as const

const PROCESS_OUTPUT = {
  type: 'object',
  properties: {
    process_id: { type: 'integer' },
    running: { type: 'boolean' },
    output: { type: 'string' },
    exit_code: { type: ['integer', 'null'] },
  },
  required: ['process_id', 'running', 'output', 'exit_code'],
}

/** New output, and whether the command is still running. */
function processResult(process: Process, max = READ_CHARS): Result {
  const output = clip(process.output.take(), max)
  const running = isRunning(process)
  const ended = process.ended
  const state = running ? `process ${process.id} is running` : ended ? outcomeText(ended.outcome) : 'failed'
  const exit = ended?.outcome.kind === 'exited' ? ended.outcome.code : null
  return done([output, `[${state}]`].filter((part) => part !== '').join('\n'), {
    process_id: process.id,
    running,
    output,
    exit_code: exit,
  })
}

const inside = async (session: AgentSession, given: string | undefined): Promise<string | undefined> =>
  given === undefined ? undefined : guestPath(await session.sandbox(), given)

/** Tools that run commands and code. */
export const execOperations: readonly Operation[] = [
  operation({
    name: 'exec',
    title: 'Run a command',
    effect: 'changes',
    about:
      'Runs a command in the sandbox and waits for it to exit. A non-zero exit code is a result, not an error.',
    input: object({ command, cwd, env, stdin: optional(text({ empty: true })), timeout_ms: timeout }),
    output: {
      type: 'object',
      properties: {
        exec_id: { type: 'string' },
        outcome: { type: 'object' },
        exit_code: { type: ['integer', 'null'] },
        stdout: { type: 'string' },
        stderr: { type: 'string' },
        truncated: { type: 'boolean' },
        duration_ms: { type: 'integer' },
        violations: { type: 'array', items: { type: 'object' } },
        hint: { type: 'string' },
      },
      required: [
        'exec_id',
        'outcome',
        'exit_code',
        'stdout',
        'stderr',
        'truncated',
        'duration_ms',
        'violations',
      ],
    },
    async run(session, asked, call) {
      const options = {
        cwd: await inside(session, asked.cwd),
        env: asked.env,
        stdin: asked.stdin,
        ...(asked.timeout_ms === undefined ? {} : { timeoutMs: asked.timeout_ms }),
      }
      return finishedResult(await session.run(asked.command, options, call))
    },
  }),
  operation({
    name: 'process_start',
    title: 'Start a command',
    effect: 'changes',
    about:
      'Starts a command that keeps running after this call: a server, a watcher, an interactive program.',
    input: object({
      command,
      cwd,
      env,
      tty: optional(told(boolean(), 'with a terminal')),
      wait_ms: optional(
        told(number({ integer: true, min: 0, max: 60_000 }), 'how long to wait for first output'),
      ),
    }),
    output: PROCESS_OUTPUT,
    async run(session, asked, call) {
      const options = {
        cwd: await inside(session, asked.cwd),
        env: asked.env,
        stdinOpen: true,
        terminal: asked.tty,
      }
      const process = await session.start(asked.command, options, call)
      await waitFor(process, asked.wait_ms ?? 250, call.signal)
      return processResult(process)
    },
  }),
  operation({
    name: 'process_poll',
    title: 'Read from a started command',
    effect: 'reads',
    about: 'Returns the output of a started command since the last read, and whether it is still running.',
    input: object({
      process_id: processId,
      wait_ms: optional(number({ integer: true, min: 0, max: 60_000 })),
    }),
    output: PROCESS_OUTPUT,
    async run(session, asked, call) {
      const process = session.processes.get(asked.process_id)
      await waitFor(process, asked.wait_ms ?? 0, call.signal)
      return processResult(process)
    },
  }),
  operation({
    name: 'process_write',
    title: 'Write to a started command',
    effect: 'changes',
    about:
      'Writes to the standard input of a started command. SECURITY: a shell started this way is checked by the policy only once; prefer `exec`.',
    input: object({
      process_id: processId,
      data: text({ empty: true }),
      eof: optional(boolean()),
      wait_ms: optional(number({ integer: true, min: 0, max: 60_000 })),
    }),
    output: PROCESS_OUTPUT,
    async run(session, asked, call) {
      const process = session.processes.get(asked.process_id)
      if (!isRunning(process)) throw new SandboxError('wrong-state', `process ${process.id} has ended`)
      if (asked.data !== '') await process.running.write(asked.data)
      if (asked.eof) await process.running.endInput()
      await waitFor(process, asked.wait_ms ?? 250, call.signal)
      return processResult(process)
    },
  }),
  operation({
    name: 'process_kill',
    title: 'Stop a started command',
    effect: 'changes',
    about: 'Sends a signal to a started command; SIGTERM by default.',
    input: object({ process_id: processId, signal: optional(oneOf(...SIGNALS)) }),
    output: PROCESS_OUTPUT,
    async run(session, asked, call) {
      const process = session.processes.get(asked.process_id)
      if (isRunning(process)) await process.running.signal(asked.signal ?? 'SIGTERM')
      await waitFor(process, 2_000, call.signal)
      return processResult(process)
    },
  }),
  operation({
    name: 'run_code',
    title: 'Run code',
    effect: 'changes',
    about:
      'Runs Python, JavaScript or bash; variables are kept for the next call in the same context. Returns the last value.',
    input: object({
      code: text({ max: 1024 * 1024 }),
      language: optional(oneOf(...LANGUAGES)),
      context: optional(told(text({ max: 64 }), 'name of the context; each has its own variables')),
      restart: optional(told(boolean(), 'clear all variables first')),
      timeout_ms: timeout,
    }),
    output: {
      type: 'object',
      properties: { output: { type: 'string' }, failed: { type: 'boolean' } },
    },
    async run(session, asked, call) {
      const context: CodeContext = session.code(asked.language ?? 'python', asked.context)
      if (asked.restart) await context.restart()
      return context.run(asked.code, asked.timeout_ms ?? 120_000, call)
    },
  }),
]
