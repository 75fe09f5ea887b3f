/** Commands and their outcomes. */

/** A command is an argument vector, never a shell line; a shell must be explicit (`['/bin/sh', '-c', line]`), so that the policy sees it. */
export type Command = {
  readonly argv: readonly [string, ...string[]]
  /** A path inside the sandbox; default: the workspace. */
  readonly cwd?: string
  readonly env?: Readonly<Record<string, string>>
  /** A user of a sandbox with a root user; default: `user`. */
  readonly user?: string
  /** Of an isolated command: the secrets of the sandbox that it may use, by name. Default: none. */
  readonly secrets?: readonly string[]
  /** Of an isolated command: whether it may use the proxy of its sandbox. Default: yes. */
  readonly network?: boolean
  /** Of an isolated command: the ports at which it can be reached from outside. Default: none. */
  readonly ports?: readonly number[]
}

/** The limits that stop a command, and `cancelled` for a caller that did. */
export const STOP_LIMITS = [
  'wall',
  'idle',
  'memory',
  'pids',
  'disk',
  'output',
  'cpu',
  'fuel',
  'cancelled',
] as const
/** A limit that stopped a command. */
export type StopLimit = (typeof STOP_LIMITS)[number]

/** How a command ended. */
export type Outcome =
  | { readonly kind: 'exited'; readonly code: number }
  | { readonly kind: 'signaled'; readonly signal: string }
  | { readonly kind: 'stopped'; readonly limit: StopLimit }

/** An action of a command that a guarantee blocked. */
export type Violation = {
  readonly guarantee: string
  /** The blocked action, for example `write .git/config`. */
  readonly details: string
}

/** A file access of an observed command, successful or not. */
export type Use = { readonly kind: 'read' | 'write' | 'start'; readonly path: string }

/** Everything that is known about a finished command. */
export type ExecResult = {
  readonly outcome: Outcome
  readonly stdout: Uint8Array
  readonly stderr: Uint8Array
  readonly truncated: boolean
  readonly durationMs: number
  readonly violations: readonly Violation[]
  /** The isolation layers of this run as the kernel reports them. */
  readonly layers: readonly string[]
  /** Present in learn mode. */
  readonly uses?: readonly Use[]
}

/** The exit code of our own process for an outcome: the command's own, 128 + n for a signal, 124 for a limit. */
export function exitCodeOf(outcome: Outcome, signals: Readonly<Record<string, number>>): number {
  switch (outcome.kind) {
    case 'exited':
      return outcome.code
    case 'signaled':
      return 128 + (signals[outcome.signal] ?? 0)
    case 'stopped':
      return outcome.limit === 'cancelled' ? 130 : 124
    default:
      return outcome satisfies never
  }
}
