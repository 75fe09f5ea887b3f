import { readdirSync } from 'node:fs'
import { observePath } from '../host/files/walk.ts'
import { SandboxError } from '../model/errors.ts'
import { isInWorkspace } from '../model/files/path.ts'
import { type Capability, grantsFile, grantsName } from '../policy/grants/capability.ts'

/** The host paths that are mounted for a script skill. */
export type ScriptMounts = {
  readonly read: readonly string[]
  readonly write: readonly string[]
  /** The working directory; the skill's directory if nothing of the workspace is mounted. */
  readonly cwd: string | undefined
}

const MAX_MATCHES = 256

/** Mounts are directories and files, so a pattern is expanded to the paths that match it now. */
export function mountsFor(grants: readonly Capability[], workspace: string | undefined): ScriptMounts {
  const root = workspace === undefined ? undefined : realOf(workspace)
  const readsAll = ['file_read', 'file_list'].some((tool) => grantsName(grants, 'ToolInvoke', tool))
  const writesAll = grantsName(grants, 'ToolInvoke', 'file_write')
  const whole = root !== undefined && (readsAll || writesAll) ? [root] : []
  const write = [...(writesAll ? whole : []), ...directoriesOf(grants, 'FileWrite', root)]
  const read = [...(writesAll ? [] : whole), ...directoriesOf(grants, 'FileRead', root)]
  const seen = [...read, ...write].some((path) => root !== undefined && isInWorkspace(path, root))
  return {
    write: distinct(write),
    read: distinct(read.filter((path) => !write.includes(path))),
    cwd: seen ? root : undefined,
  }
}

const distinct = (paths: readonly string[]): readonly string[] => [...new Set(paths)]

function realOf(path: string): string | undefined {
  const seen = observePath(path)
  return seen.state === 'exists' ? seen.real : undefined
}

function directoriesOf(
  grants: readonly Capability[],
  kind: 'FileRead' | 'FileWrite',
  root: string | undefined,
): readonly string[] {
  return grants.flatMap((grant) => {
    if (grant.kind !== kind || !('root' in grant)) return []
    if (grant.root === 'any') throw tooWide(grant)
    const base = grant.root === 'absolute' ? '' : root
    return base === undefined ? [] : directoriesIn(grant, kind, base, root)
  })
}

type FileGrant = Extract<Capability, { root: string }>

function directoriesIn(
  grant: FileGrant,
  kind: 'FileRead' | 'FileWrite',
  base: string,
  root: string | undefined,
): readonly string[] {
  const fixed: string[] = []
  for (const token of grant.pattern) {
    if (token.kind !== 'is' || /[*?]/.test(token.text)) break
    fixed.push(token.text)
  }
  const start = realOf([base, ...fixed].join('/') || '/')
  if (start === undefined) return []
  // SECURITY: a symlink in the workspace must not lead to a mount outside of it.
  if (grant.root === 'workspace' && root !== undefined && !isInWorkspace(start, root)) return []
  const rest = grant.pattern.slice(fixed.length)
  if (rest.length === 0 || (rest.length === 1 && rest[0]?.kind === 'many')) return [start]
  if (kind === 'FileWrite')
    throw new SandboxError(
      'unsupported',
      `\`${grant.text}\`: a script writes whole directories or single files`,
      {
        hint: 'write `dir/**`',
      },
    )
  return matchesBelow(grant, start, root)
}

/** The files that match a pattern now. */
function matchesBelow(grant: FileGrant, start: string, root: string | undefined): readonly string[] {
  const names = readdirSync(start, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile())
  const found = names
    .map((entry) => `${entry.parentPath ?? entry.path}/${entry.name}`)
    .filter((absolute) => {
      const inWorkspace =
        root !== undefined && isInWorkspace(absolute, root) ? absolute.slice(root.length + 1) : undefined
      return grantsFile([grant], grant.kind, { absolute, inWorkspace })
    })
  if (found.length > MAX_MATCHES) throw tooWide(grant)
  return found
}

const tooWide = ({ text }: Capability): SandboxError =>
  new SandboxError('unsupported', `\`${text}\` is too wide for a script`, {
    hint: 'name directories: `data/**`',
  })
