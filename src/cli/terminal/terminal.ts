import type { TerminalSize } from '../../backends/backend.ts'
import { servedCaller } from '../../host/broker/served-caller.ts'
import type { ExecOptions, Executed, Sandbox } from '../../supervisor/sandbox.ts'
import { endUnread, isTerminalStream } from './output.ts'
import type { TerminalLease } from './terminal-lease.ts'

/** Whether stdin and stdout are a terminal; the command then gets its own pseudo-terminal. */
export const isTerminal = (): boolean => isTerminalStream('stdin') && isTerminalStream('stdout')

/** Runs a command in a pseudo-terminal inside the sandbox that follows the size of ours. */
export async function runInTerminal(
  sandbox: Sandbox,
  command: string | readonly string[],
  options: Pick<ExecOptions, 'approve' | 'signal'>,
  lease: TerminalLease,
): Promise<Executed> {
  const write = (chunk: Uint8Array): Promise<void> | undefined =>
    process.stdout.write(chunk) ? undefined : new Promise((resolve) => process.stdout.once('drain', resolve))
  const output = (_: string, chunk: Uint8Array): Promise<void> | undefined =>
    lease.free ? lease.free.then(() => write(chunk)) : write(chunk)
  const running = await sandbox.spawn(command, { ...options, output, stdin: true, terminal: sizeOfOurs() })
  const onInput = (chunk: Uint8Array): void => void running.write(chunk).catch(() => {})
  const onResize = (): void => running.resize(sizeOfOurs())
  // Raw mode: keys such as Ctrl-C are sent to the inner terminal, which signals its foreground process.
  const take = (): void => {
    process.stdin.setRawMode(true)
    process.stdin.on('data', onInput)
    process.stdin.resume()
  }
  const release = (): void => {
    process.stdin.setRawMode(false)
    process.stdin.off('data', onInput)
  }
  if (!lease.free) take()
  lease.user = { take, release }
  process.stdout.on('resize', onResize)
  try {
    return await running.result
  } finally {
    await lease.free
    lease.user = undefined
    release()
    process.stdin.pause()
    process.stdout.off('resize', onResize)
  }
}

const sizeOfOurs = (): TerminalSize => ({
  cols: process.stdout.columns || 80,
  rows: process.stdout.rows || 24,
})

const PASSED = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2'] as const
const ENDING: readonly string[] = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT']
/** How long a command may take to exit after a terminating signal. */
const PATIENCE_MS = 5000

/** Calls the listener for our signals, or those of the caller that this process serves. Returns a function that stops it. */
function signalsTo(listener: (signal: NodeJS.Signals) => void): () => void {
  const caller = servedCaller()
  if (caller) return caller.onSignal(listener)
  for (const signal of PASSED) process.on(signal, listener)
  return () => {
    for (const signal of PASSED) process.off(signal, listener)
  }
}

/** Forwards our signals to the command; kills it if it does not exit in time, or at the second signal. */
export class SignalForwarder {
  readonly #abort = new AbortController()
  #send: ((signal: NodeJS.Signals) => void) | undefined
  #timer: NodeJS.Timeout | undefined
  readonly #onSignal = (signal: NodeJS.Signals): void => this.#pass(signal)

  readonly #unsubscribe: () => void
  /** Signals arrive outside of the context of the caller. */
  readonly #caller = servedCaller()

  constructor() {
    this.#unsubscribe = signalsTo(this.#onSignal)
    // A caller that has gone can send nothing any more.
    this.#caller?.gone.addEventListener('abort', () => this.#abort.abort(), { once: true })
  }

  /** Aborted when the command must be killed. */
  get stop(): AbortSignal {
    return this.#abort.signal
  }

  passTo(send: (signal: NodeJS.Signals) => void): void {
    this.#send = send
  }

  dispose(): void {
    clearTimeout(this.#timer)
    this.#unsubscribe()
  }

  #pass(signal: NodeJS.Signals): void {
    const ends = ENDING.includes(signal)
    if (!this.#send || (ends && this.#timer)) this.#abort.abort()
    else this.#send(signal)
    if (!ends || this.#timer) return
    this.#timer = setTimeout(() => this.#abort.abort(), PATIENCE_MS)
    if (!this.#caller) endUnread()
  }
}
