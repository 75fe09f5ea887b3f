import { constants } from 'node:os'
import type { RemoteSandbox } from '../../client/sandbox.ts'
import type { ExecEnd, ExecEvent, ExecOptions, StreamEnd } from '../../client/types.ts'
import { hasOwnInput } from '../../host/process/own-streams.ts'
import { exitCodeOf } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { visible, visibleJson } from '../../model/text/visible.ts'
import { err, out, passBytes } from '../terminal/output.ts'
import { SignalForwarder } from '../terminal/terminal.ts'

type Command = string | readonly string[]

/** Runs a command; its output, input, signals and exit code are those of this process. */
export async function execHere(
  target: RemoteSandbox,
  command: Command,
  options: ExecOptions,
): Promise<number> {
  const input = hasOwnInput()
  const events = target.stream(command, { ...options, ...(input ? { stdin_open: true } : {}) })
  return follow(target, events, { input, timeoutMs: options.timeout_ms })
}

/** Runs a command and prints its result as JSON. */
export async function execJson(
  target: RemoteSandbox,
  command: Command,
  options: ExecOptions,
): Promise<number> {
  const stdin = hasOwnInput() ? Buffer.concat(await collected(process.stdin)).toString('utf8') : undefined
  const done = await target.exec(command, { ...options, ...(stdin === undefined ? {} : { stdin }) })
  out(`${visibleJson(done)}\n`)
  sayCut(done.cut)
  return done.outcome ? exitCodeOf(done.outcome, constants.signals) : 125
}

/** The output of a command that runs; signals go to it. */
export async function attachTo(target: RemoteSandbox, execId: string | undefined): Promise<number> {
  const id = execId ?? (await target.execs()).items.find(({ state }) => state === 'running')?.exec_id
  if (id === undefined)
    throw new SandboxError('not-found', 'no command is running in this sandbox', {
      hint: 'start one with `ringfence sandbox exec ID`',
    })
  return follow(target, target.attach(id), { input: false })
}

type Following = { readonly input: boolean; readonly timeoutMs?: number | undefined }

/** Prints the events of a command until its end. */
async function follow(
  target: RemoteSandbox,
  events: AsyncIterable<ExecEvent>,
  { input, timeoutMs }: Following,
): Promise<number> {
  const signals = new SignalForwarder()
  try {
    for await (const event of events) {
      if (event.type === 'start') {
        connectSignals(signals, target, event.exec_id)
        if (input) void passInput(target, event.exec_id)
      } else if (event.type === 'stdout' || event.type === 'stderr') await passBytes(event.type, event.data)
      else if (event.type === 'approval')
        err(`ringfence: waiting for approval; answer with \`ringfence approve ${visible(event.id)}\`\n`)
      else if (event.type === 'gap') err('ringfence: some output was lost, because it was not read in time\n')
      else if (event.type === 'end') return ended(event.result, timeoutMs)
    }
    return 125
  } finally {
    signals.dispose()
    process.stdin.destroy()
  }
}

function ended(result: ExecEnd, timeoutMs: number | undefined): number {
  sayCut(result.cut)
  const { outcome, hint } = result
  if (outcome?.kind === 'stopped') err(`ringfence: ${stopText(outcome.limit, timeoutMs)}\n`)
  if (hint !== undefined) err(`ringfence: hint: ${visible(hint)}\n`)
  return outcome ? exitCodeOf(outcome, constants.signals) : 125
}

const stopText = (limit: string, timeoutMs: number | undefined): string =>
  limit === 'wall' && timeoutMs
    ? `timed out after ${timeoutMs / 1000} s (--timeout)`
    : `stopped by the sandbox's limit \`${limit}\``

function connectSignals(signals: SignalForwarder, target: RemoteSandbox, execId: string): void {
  const send = (signal: string): void => void target.signal(execId, signal).catch(() => {})
  signals.passTo(send)
  signals.stop.addEventListener('abort', () => send('SIGKILL'), { once: true })
}

/** One write at a time, so that a slow program slows down the reading. */
async function passInput(target: RemoteSandbox, execId: string): Promise<void> {
  try {
    for await (const chunk of process.stdin) await target.write(execId, chunk as Uint8Array)
    await target.write(execId, '', true)
  } catch {
    // The command has ended or closed its input; what was not read stays unread.
  }
}

async function collected(stream: AsyncIterable<unknown>): Promise<readonly Uint8Array[]> {
  const chunks: Uint8Array[] = []
  for await (const chunk of stream) chunks.push(chunk as Uint8Array)
  return chunks
}

/** Prints why the server ended the stream before the command exited. */
function sayCut(cut: StreamEnd | undefined): void {
  if (cut) err(`ringfence: ${visible(cut.message)}\n`)
}
