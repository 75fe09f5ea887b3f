import { visibleLines } from '../../model/visible.ts'

/**
 * The only way to the person's terminal.
 * SECURITY: whatever is printed may quote a sandbox or an agent. Here everything but line feeds and tabs is made visible;
 * values that could bring a line feed of their own go through `visible` before they are put into a text.
 */
export const out = (text: string): boolean => process.stdout.write(visibleLines(text))
export const err = (text: string): boolean => process.stderr.write(visibleLines(text))

/** Text with colours of ours; every piece of it that is not ours went through `visible`. */
export const outStyled = (text: string): boolean => process.stdout.write(text)

/** What a command of the person printed, byte for byte. */
export const errBytes = (chunk: Uint8Array): boolean => process.stderr.write(chunk)

/** Between a reader that went away and the end of a command that writes for ever. */
const AFTER_CLOSED_MS = 2000
const SIGPIPE_EXIT = 141

/** Whoever reads us may stop (`| head -1`): the rest is not written, what is open is closed, and nothing is complained about. */
export function endWithReader(onClosed: (exitCode: number) => void): void {
  for (const stream of [process.stdout, process.stderr])
    stream.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code !== 'EPIPE') throw error
      if (stream !== process.stdout) return
      onClosed(SIGPIPE_EXIT)
      setTimeout(() => process.exit(SIGPIPE_EXIT), AFTER_CLOSED_MS).unref()
    })
}
