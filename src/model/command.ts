/** What runs in a sandbox and how it ended. */

/** A command is a tuple, never a sentence: whoever wants a shell says `['/bin/sh', '-c', line]`, and policy sees it. */
export type Command = {
  readonly argv: readonly [string, ...string[]]
  /** A guest path; the workspace when absent. */
  readonly cwd?: string
  readonly env?: Readonly<Record<string, string>>
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
export type StopLimit = (typeof STOP_LIMITS)[number]

/** How a command ended. */
export type Outcome =
  | { readonly kind: 'exited'; readonly code: number }
  | { readonly kind: 'signaled'; readonly signal: string }
  | { readonly kind: 'stopped'; readonly limit: StopLimit }

/** A guarantee stopped something while a command ran. */
export type Violation = {
  readonly guarantee: string
  /** What was tried, in a few words: `write .git/config`. */
  readonly details: string
}

/** What a watched command wanted of the file system, whether it got it or not. */
export type Use = { readonly kind: 'read' | 'write' | 'start'; readonly path: string }

/** Everything that is known about a finished command. */
export type ExecResult = {
  readonly outcome: Outcome
  readonly stdout: Uint8Array
  readonly stderr: Uint8Array
  readonly truncated: boolean
  readonly durationMs: number
  readonly violations: readonly Violation[]
  /** The layers that the kernel reports for this run, read back and not wished for. */
  readonly layers: readonly string[]
  /** Present when the sandbox was asked to learn. */
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
