import { execFileSync } from 'node:child_process'

/** A real pseudo-terminal that a test types into and looks at, by tmux. */
export class Terminal {
  readonly #socket: string

  private constructor(socket: string) {
    this.#socket = socket
  }

  /** Starts a command in a terminal of 100 columns and 40 rows. */
  static start(
    name: string,
    command: readonly string[],
    { cwd, env }: { readonly cwd: string; readonly env: Readonly<Record<string, string>> },
  ): Terminal {
    const terminal = new Terminal(`rf-${name}-${process.pid}`)
    const set = Object.entries(env).map(([key, value]) => `${key}=${value}`)
    terminal.#tmux([
      'new-session',
      '-d',
      '-x',
      '100',
      '-y',
      '40',
      '-c',
      cwd,
      '--',
      'env',
      '-i',
      ...set,
      ...command,
    ])
    return terminal
  }

  /** What is on the screen; with `colours` as escape sequences. */
  screen(colours = false): string {
    return this.#tmux(['capture-pane', '-p', ...(colours ? ['-e'] : [])])
  }

  /** Types keys by their tmux names (`Enter`, `Down`) or literally. */
  type(...keys: readonly string[]): void {
    this.#tmux(['send-keys', ...keys])
  }

  close(): void {
    try {
      const group = Number(this.#tmux(['display-message', '-p', '#{pane_pid}']))
      this.#tmux(['kill-server'])
      // Gemini CLI goes on when its terminal is gone.
      process.kill(-group, 'SIGKILL')
    } catch {
      // The command has ended, and its terminal with it.
    }
  }

  #tmux(args: readonly string[]): string {
    return execFileSync('tmux', ['-L', this.#socket, '-f', '/dev/null', ...args], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'pipe'],
    })
  }
}
