/** What a human approved, so exactly that nothing else passes for it. */

/** The file that a program's name led to. Any change of it is another program. */
export type ProgramIdentity = {
  readonly path: string
  readonly dev: string
  readonly ino: string
  readonly size: string
  readonly mtimeNs: string
  /** Also moves when somebody sets the other times back. */
  readonly ctimeNs: string
}

/** Everything that an approval binds to. */
export type ApprovalFacts = {
  readonly command: { readonly line: string } | { readonly argv: readonly string[] }
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  /** Each program of the command by the name it is called by; `null` where the name leads nowhere. */
  readonly programs: Readonly<Record<string, ProgramIdentity | null>>
}

/**
 * One text for each set of facts: equal exactly when the command, its directory, its environment and every program
 * are the same. It holds the environment's values, so whoever keeps it keeps a digest of it.
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

/** By code units, so that no locale changes a key. */
const sorted = <T>(record: Readonly<Record<string, T>>): readonly (readonly [string, T])[] =>
  Object.entries(record).sort(([a], [b]) => (a < b ? -1 : 1))
