import { servedCaller } from '../../host/broker/served-caller.ts'
import { dropUnreadOutput, passTo } from '../../host/process/own-streams.ts'
import { visibleJsonPieces, visibleLines } from '../../model/text/visible.ts'

/**
 * The only functions that write to the user's terminal.
 * SECURITY: printed text may quote a sandbox or an agent. Control characters except line feeds and tabs are escaped here;
 * values that could contain a line feed must go through `visible` before they are inserted into a text.
 */
export const out = (text: string): boolean => write('stdout', visibleLines(text))
/** Prints a message on standard error. */
export const err = (text: string): boolean => write('stderr', visibleLines(text))

/** Prints text with our own colours; every foreign part of it must have gone through `visible`. */
export const outStyled = (text: string): boolean => write('stdout', text)

/** Prints an object as JSON, as fast as it is read; others are served meanwhile. */
export async function outJson(value: Readonly<Record<string, unknown>>): Promise<void> {
  let text = ''
  for (const piece of visibleJsonPieces(value)) {
    if (text !== '') {
      await passBytes('stdout', Buffer.from(text))
      await new Promise(setImmediate)
    }
    text = piece
  }
  out(`${text}\n`)
}

/** Prints the output of the user's command unchanged. */
export const errBytes = (chunk: Uint8Array): boolean => write('stderr', chunk)

/** To the caller that this process serves, or else to our own stream. No text is not written: even that fails on some devices. */
const write = (name: 'stdout' | 'stderr', text: string | Uint8Array): boolean =>
  text.length === 0 || (servedCaller()?.write(name, text) ?? process[name].write(text))

/** Whether a standard stream is a terminal. */
export const isTerminalStream = (name: 'stdin' | 'stdout' | 'stderr'): boolean =>
  servedCaller()?.terminals[name] ?? process[name].isTTY === true

/** Standard input. */
export const inputStream = (): NodeJS.ReadableStream & { destroy(): unknown } =>
  servedCaller()?.input ?? process.stdin

/** The same on either stream; the promise resolves when a slow reader can take more. */
export const passBytes = (stream: 'stdout' | 'stderr', chunk: Uint8Array): Promise<void> | undefined =>
  passTo(servedCaller(), stream, chunk)

/** Grace period between a closed stdout and the exit of a command that keeps writing. */
const AFTER_CLOSED_MS = 2000
const SIGPIPE_EXIT = 141

/** The exit code of a hook that every agent takes for "do not run the tool". */
const BLOCKED_EXIT = 2
const OUTPUT_EXIT = 1

/**
 * Exits without an error message when the reader of stdout closes the pipe (`| head -1`), and with one when stdout cannot
 * be written to. SECURITY: a hook whose verdict cannot be read blocks.
 */
export function endWithReader(isHook: boolean, onClosed: (exitCode: number) => void): void {
  // What was to be said there cannot be said anywhere else.
  process.stderr.on('error', () => {})
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE' || isHook) {
      err('ringfence: cannot write to standard output\n')
      process.exit(isHook ? BLOCKED_EXIT : OUTPUT_EXIT)
    }
    onClosed(SIGPIPE_EXIT)
    setTimeout(() => process.exit(SIGPIPE_EXIT), AFTER_CLOSED_MS).unref()
  })
}

/** How long a reader may take for the output after an interruption. */
const UNREAD_MS = 500
let isInterrupted = false

/** After an interruption, the command and this process end although nobody reads their output. */
export function endUnread(): void {
  isInterrupted = true
  setTimeout(dropUnreadOutput, UNREAD_MS).unref()
}

/** To be called when everything is done and recorded: what nobody has read does not keep the process. */
export function leaveUnread(): void {
  if (isInterrupted) setTimeout(() => process.exit(), UNREAD_MS).unref()
}
