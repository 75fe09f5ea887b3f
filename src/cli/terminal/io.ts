/** The input and output of a command; tests pass their own. */
export type CliIo = {
  /** The state directory. */
  readonly home: string
  /** Writes exactly this text to standard output. */
  out(text: string): void
  /** Writes exactly this text to standard error. */
  err(text: string): void
  /** Whether `--json` was given before the command's name. */
  readonly json: boolean
  /** Stops a command that waits, such as `audit tail --follow`. */
  readonly signal?: AbortSignal
}
