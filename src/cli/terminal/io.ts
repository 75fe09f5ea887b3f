/** What a command may use of the world around it; a test passes its own. */
export type CliIo = {
  /** The state directory. */
  readonly home: string
  /** Writes exactly this text to standard output. */
  out(text: string): void
  /** Writes exactly this text to standard error. */
  err(text: string): void
  /** Whether `--json` stood before the command's name. */
  readonly json: boolean
  /** Ends a command that waits, like `audit tail --follow`. */
  readonly signal?: AbortSignal
}
