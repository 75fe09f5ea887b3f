import { writeOwn } from '../../host/process/own-streams.ts'
import { visibleLines } from '../../model/visible.ts'

/**
 * The only functions that write to the user's terminal.
 * SECURITY: printed text may quote a sandbox or an agent. Control characters except line feeds and tabs are escaped here;
 * values that could contain a line feed must go through `visible` before they are inserted into a text.
 */
export const out = (text: string): boolean => process.stdout.write(visibleLines(text))
/** Prints a message on standard error. */
export const err = (text: string): boolean => process.stderr.write(visibleLines(text))

/** Prints text with our own colours; every foreign part of it must have gone through `visible`. */
export const outStyled = (text: string): boolean => process.stdout.write(text)

/** Prints the output of the user's command unchanged. */
export const errBytes = (chunk: Uint8Array): boolean => process.stderr.write(chunk)

/** The same on either stream; the promise resolves when a slow reader can take more. */
export const passBytes = writeOwn

/** Grace period between a closed stdout and the exit of a command that keeps writing. */
const AFTER_CLOSED_MS = 2000
const SIGPIPE_EXIT = 141

/** Exits without an error message when the reader of stdout closes the pipe (`| head -1`). */
export function endWithReader(onClosed: (exitCode: number) => void): void {
  for (const stream of [process.stdout, process.stderr])
    stream.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code !== 'EPIPE') throw error
      if (stream !== process.stdout) return
      onClosed(SIGPIPE_EXIT)
      setTimeout(() => process.exit(SIGPIPE_EXIT), AFTER_CLOSED_MS).unref()
    })
}
