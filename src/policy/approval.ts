/** The exact facts that a human approved; an approval holds for nothing else. */

/** The file that a program name resolved to. A file that differs in any field counts as another program. */
export type ProgramIdentity = {
  readonly path: string
  readonly dev: string
  readonly ino: string
  readonly size: string
  readonly mtimeNs: string
  /** Changes even if the other timestamps are reset. */
  readonly ctimeNs: string
}

/** Everything that an approval is bound to. */
export type ApprovalFacts = {
  readonly command: { readonly line: string } | { readonly argv: readonly string[] }
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  /** Each program of the command by the name used to call it; `null` if the name does not resolve. */
  readonly programs: Readonly<Record<string, ProgramIdentity | null>>
}

/**
 * One string per set of facts: equal if and only if the command, its directory, its environment and every program are the
 * same. It contains the values of the environment, so callers store only a digest of it.
 */
export function approvalKey({ command, cwd, env, programs }: ApprovalFacts): string {
  const asked = 'line' in command ? ['line', command.line] : ['argv', ...command.argv]
  return JSON.stringify([
    'approval/1',
    asked,
    cwd,
    sorted(env),
    sorted(programs).map(([name, found]) => [name, found && identityOf(found)]),
  ])
}

const identityOf = ({ path, dev, ino, size, mtimeNs, ctimeNs }: ProgramIdentity): readonly string[] => [
  path,
  dev,
  ino,
  size,
  mtimeNs,
  ctimeNs,
]

/** Sorted by code units, so that the locale does not change a key. */
const sorted = <T>(record: Readonly<Record<string, T>>): readonly (readonly [string, T])[] =>
  Object.entries(record).sort(([a], [b]) => (a < b ? -1 : 1))
