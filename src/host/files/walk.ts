import { type BigIntStats, lstatSync, readlinkSync } from 'node:fs'
import { SandboxError } from '../../model/errors.ts'
import type { PathFact, RealPath } from '../../model/plan.ts'

/** The kinds of files that the policy distinguishes. */
export type PathKind = 'dir' | 'file' | 'socket' | 'fifo' | 'device' | 'other'

/** The identity of one inode: enough to notice later that it is another one. */
export type PathThing = {
  readonly kind: PathKind
  readonly dev: string
  readonly ino: string
  readonly uid: number
  readonly gid: number
  readonly nlink: number
}

/** A symbolic link that the walk passed: its real parent directory and its target. */
type PassedLink = { readonly at: string; readonly target: string }

type Walked = {
  readonly asked: string
  /** `asked` without doubled slashes, `.` segments and a trailing slash; `..` is kept. */
  readonly normal: string
  readonly symlinks: readonly PassedLink[]
}

/** What one walk along an absolute path saw. Only ENOENT means `missing`; all other errors mean `unreadable`. */
export type PathObservation =
  | (Walked & { readonly state: 'exists'; readonly real: RealPath; readonly thing: PathThing })
  | (Walked & {
      readonly state: 'missing'
      /** The deepest directory that exists; `thing` is its identity. */
      readonly ancestor: RealPath
      readonly thing: PathThing
      /** The missing components below the ancestor; never empty, never `..`. */
      readonly missing: readonly string[]
      /** The missing name comes from a symbolic link: creating the path creates the target of the link. */
      readonly dangling: boolean
    })
  | (Walked & { readonly state: 'unreadable'; readonly errno: string })

// The kernel's limit.
const MAX_LINKS = 40

type Step = { readonly name: string; readonly fromLink: boolean }

const stepsOf = (path: string, fromLink: boolean): Step[] =>
  path
    .split('/')
    .filter((name) => name !== '' && name !== '.')
    .map((name) => ({ name, fromLink }))

const join = (parent: string, name: string): string => (parent === '/' ? `/${name}` : `${parent}/${name}`)
const parentOf = (path: string): string => path.slice(0, Math.max(1, path.lastIndexOf('/')))

/**
 * Walks an absolute path component by component, follows symbolic links itself, and reports what is there.
 * The policy decides on this observation; to use the path afterwards, open it with `openChecked`.
 */
export function observePath(path: string): PathObservation {
  if (!path.startsWith('/'))
    throw new SandboxError('path-not-absolute', `\`${path}\` is not an absolute path`)
  const symlinks: PassedLink[] = []
  const normal = `/${stepsOf(path, false)
    .map((step) => step.name)
    .join('/')}`
  const base = { asked: path, normal, symlinks }
  try {
    return walk(base, symlinks)
  } catch (error) {
    return { ...base, state: 'unreadable', errno: errnoOf(error) }
  }
}

function walk(base: Walked, symlinks: PassedLink[]): PathObservation {
  let current = '/'
  let thing = thingOf(lstat('/') as BigIntStats)
  const pending = stepsOf(base.normal, false).reverse()
  for (let step = pending.pop(); step !== undefined; step = pending.pop()) {
    const next = step.name === '..' ? parentOf(current) : join(current, step.name)
    const stat = lstat(next)
    if (stat === undefined) return missingBelow(base, { current, thing, step, pending })
    if (stat.isSymbolicLink()) {
      if (symlinks.length === MAX_LINKS) throw fault('ELOOP')
      const target = linkText(next)
      symlinks.push({ at: next, target })
      pending.push(...stepsOf(target, true).reverse())
      if (target.startsWith('/')) current = '/'
      // The link itself is not the destination: its target is visited next, or the directory stays.
      if (pending.length === 0) thing = thingOf(lstat(current) as BigIntStats)
      continue
    }
    current = next
    thing = thingOf(stat)
    if (pending.length > 0 && thing.kind !== 'dir') throw fault('ENOTDIR')
  }
  return { ...base, state: 'exists', real: current as RealPath, thing }
}

type Stop = {
  readonly current: string
  readonly thing: PathThing
  readonly step: Step
  readonly pending: readonly Step[]
}

function missingBelow(base: Walked, { current, step, pending }: Stop): PathObservation {
  const rest = pending.toReversed()
  // The kernel returns ENOENT for `missing/..`; resolving it as text would name another path.
  if (rest.some(({ name }) => name === '..')) throw fault('ENOENT')
  const missing = [step.name, ...rest.map(({ name }) => name)]
  const dangling = step.fromLink && rest.every(({ fromLink }) => fromLink)
  const thing = thingOf(lstat(current) as BigIntStats)
  return { ...base, state: 'missing', ancestor: current as RealPath, thing, missing, dangling }
}

function lstat(path: string): BigIntStats | undefined {
  return lstatSync(path, { bigint: true, throwIfNoEntry: false })
}

/** SECURITY: a link target that is not UTF-8 would be resolved under another name than the kernel uses. */
function linkText(path: string): string {
  const bytes = readlinkSync(path, { encoding: 'buffer' })
  const text = bytes.toString('utf8')
  if (!Buffer.from(text, 'utf8').equals(bytes)) throw fault('EILSEQ')
  return text
}

function thingOf(stat: BigIntStats): PathThing {
  return {
    kind: kindOf(stat),
    dev: String(stat.dev),
    ino: String(stat.ino),
    uid: Number(stat.uid),
    gid: Number(stat.gid),
    nlink: Number(stat.nlink),
  }
}

/** The kind of file that a stat describes. */
export function kindOf(stat: BigIntStats): PathKind {
  if (stat.isDirectory()) return 'dir'
  if (stat.isFile()) return 'file'
  if (stat.isSocket()) return 'socket'
  if (stat.isFIFO()) return 'fifo'
  return stat.isCharacterDevice() || stat.isBlockDevice() ? 'device' : 'other'
}

const fault = (code: string): Error => Object.assign(new Error(code), { code })

const errnoOf = (error: unknown): string =>
  error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : 'EIO'

/** The fact of a mountable path for a plan. Throws if the path cannot be mounted. */
export function pathFactOf(observation: PathObservation): PathFact {
  const { asked } = observation
  if (observation.state !== 'exists') {
    throw new SandboxError('forbidden-host-path', `\`${asked}\` is missing or outside the allowed paths`)
  }
  const { kind, dev, ino, uid, gid } = observation.thing
  if (kind !== 'dir' && kind !== 'file' && kind !== 'socket') {
    throw new SandboxError('forbidden-host-path', `\`${asked}\` is a ${kind}, not a file or directory`)
  }
  return { real: observation.real, kind, dev, ino, uid, gid }
}
