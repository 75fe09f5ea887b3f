import { type BigIntStats, lstatSync } from 'node:fs'
import { observePath, type PathObservation } from '../../host/files/walk.ts'
import { isWithin } from '../../model/files/path.ts'
import { judgePath, type PathEvidence, type PathOp, screenPath } from '../../policy/paths/paths.ts'
import {
  type Access,
  type Asked,
  accessOf,
  OUTSIDE,
  policyOf,
  type Root,
  realOf,
  refusedAccess,
  rootsOf,
  traversal,
} from './files.ts'
import { HostRefusal } from './host-parts.ts'

/**
 * Resolves the paths of WASI programs to one entry of one directory. The steps are those of every file function: check
 * the grant for the text, resolve, check the grant for the real path, judge the name. The entry itself may be missing, a
 * link or a directory, because WASI can create, rename and remove all of them.
 */

/** Where a path starts. */
export type Start = {
  /** An absolute path. */
  readonly base: string
  /** A program cannot leave a directory that it opened; preopened directories are bounded by the grants alone. */
  readonly opened: boolean
}

type Existing = Extract<PathObservation, { state: 'exists' }>

/** One entry of a directory, whether or not it exists. */
export type Entry = {
  readonly asked: Asked
  readonly roots: readonly Root[]
  readonly parent: Existing
  readonly name: string
  /** The real path of the entry: the real path of its directory, and its name. */
  readonly real: string
  /** The path as text, without `.` and `..`. */
  readonly text: string
  /** Not following a link. */
  readonly stat: BigIntStats | undefined
  /** The path ends with a slash: it must be a directory. */
  readonly slash: boolean
  /** The path ends with `.` or `..`, or is the directory it starts from. */
  readonly dot: boolean
}

/** An error of the file system, reported to the program as it is. */
export const failure = (errno: string): HostRefusal =>
  new HostRefusal(errno, `the file system reports ${errno}`)

const ERRNOS = new Set(['EACCES', 'ELOOP', 'ENAMETOOLONG', 'ENOENT', 'ENOTDIR'])

type Lookup = { readonly asked: Asked; readonly start: Start; readonly follow: boolean }

/** Resolves a path; throws unless the grants allow this access to the text and to the real path. */
export function resolveEntry({ asked, start, follow }: Lookup): Entry {
  const { path } = asked
  if (path === '') throw failure('ENOENT')
  if (path.startsWith('/')) throw traversal(asked, 'the path is absolute')
  const roots = rootsOf(asked.parts)
  const access = accessOf(asked, roots)
  const steps = path.split('/').filter((step) => step !== '' && step !== '.')
  const text = textOf(asked, start.base, steps, access)
  const dot = steps.length === 0 || steps.at(-1) === '..'
  const walk = { asked, access, start, steps }
  const entry = dot ? walkedTo(walk, steps) : entryBelow(walk)
  const linked = follow && entry.stat?.isSymbolicLink() === true ? walkedTo(walk, steps) : entry
  return { asked, roots, text, slash: /\/\.?$/.test(path), dot, ...linked }
}

/**
 * The path as text, starting at the base.
 * SECURITY: a path whose text is not granted is never resolved; with `..`, that holds for every directory on the way.
 */
function textOf(
  asked: Asked,
  base: string,
  steps: readonly string[],
  access: (path: string) => Access,
): string {
  const names: string[] = []
  const textPath = (): string => (names.length === 0 ? base : `${base}/${names.join('/')}`)
  for (const step of steps) {
    if (step !== '..') {
      names.push(step)
      continue
    }
    if (names.length === 0) throw traversal(asked, OUTSIDE)
    if (access(textPath()) !== 'granted') throw refusedAccess(asked)
    names.pop()
  }
  const text = textPath()
  if (access(text) === 'denied') throw refusedAccess(asked)
  const screened = screenPath(text)
  if (screened.kind === 'refused') throw traversal(asked, screened.reason)
  if (access(text) === 'outside') throw traversal(asked, OUTSIDE)
  return text
}

type Walk = {
  readonly asked: Asked
  readonly access: (path: string) => Access
  readonly start: Start
  readonly steps: readonly string[]
}
type Found = Pick<Entry, 'parent' | 'name' | 'real' | 'stat'>

/** The entry named by the last step, without following it. */
function entryBelow(walk: Walk): Found {
  const directory = observe(walk, walk.steps.slice(0, -1))
  if (directory.state !== 'exists') throw problemOf(walk, directory)
  return found(walk, directory, walk.steps.at(-1) as string)
}

/** The entry that the whole path leads to, through every link. */
function walkedTo(walk: Walk, steps: readonly string[]): Found {
  const target = observe(walk, steps)
  const real = realOf(target)
  if (real === undefined || (target.state === 'missing' && target.missing.length > 1))
    throw problemOf(walk, target)
  const at = real.lastIndexOf('/')
  const directory = observePath(real.slice(0, at) || '/')
  if (directory.state !== 'exists') throw problemOf(walk, directory)
  return found(walk, directory, real.slice(at + 1))
}

const observe = ({ start }: Walk, steps: readonly string[]): PathObservation =>
  observePath([start.base, ...steps].join('/'))

function found(walk: Walk, parent: Existing, name: string): Found {
  const { asked, access, start } = walk
  if (parent.thing.kind !== 'dir') throw failure('ENOTDIR')
  const real = `${parent.real === '/' ? '' : parent.real}/${name}`
  // SECURITY: check the grant again on the resolved path, before anything is disclosed about the entry.
  if (access(real) !== 'granted') throw traversal(asked, OUTSIDE)
  if (start.opened && !isWithin(real, start.base)) throw traversal(asked, OUTSIDE)
  if (Buffer.byteLength(name) > 255) throw failure('ENAMETOOLONG')
  return { parent, name, real, stat: lstatSync(real, { bigint: true, throwIfNoEntry: false }) }
}

/** SECURITY: an error is reported as it is only if every link on the way stayed inside; otherwise it may disclose facts. */
function problemOf(walk: Walk, seen: PathObservation): HostRefusal {
  const { asked, access, steps } = walk
  const inside =
    seen.symlinks.length === 0 ||
    (!steps.includes('..') &&
      seen.symlinks.every(({ at, target }) => {
        const text = linkText(at.slice(0, at.lastIndexOf('/')), target)
        return text !== undefined && access(text) === 'granted'
      }))
  if (!inside) return traversal(asked, OUTSIDE)
  if (seen.state !== 'unreadable') return failure('ENOENT')
  return failure(ERRNOS.has(seen.errno) ? seen.errno : 'ENOENT')
}

/**
 * Where a link in a real directory leads, as text. `undefined` if the target is absolute or has `..` after a name: what
 * such a target means can change when another directory becomes a link.
 */
export function linkText(directory: string, target: string): string | undefined {
  if (target === '' || target.startsWith('/')) return undefined
  const names = directory.split('/').filter((name) => name !== '')
  let down = false
  for (const step of target.split('/')) {
    if (step === '' || step === '.') continue
    if (step === '..' && (down || names.length === 0)) return undefined
    if (step === '..') names.pop()
    else {
      down = true
      names.push(step)
    }
  }
  return `/${names.join('/')}`
}

/** Whether the policy allows an operation on a name, whatever kind of file it is: roots, blocked and protected names. */
export function allowsName(entry: Entry, op: PathOp, real = entry.real): boolean {
  const { roots, parent } = entry
  const walked = { normal: real === entry.real ? entry.text : real, symlinks: parent.symlinks }
  const at = real.lastIndexOf('/')
  const evidence: PathEvidence =
    op === 'create'
      ? { ...walked, state: 'missing', ancestor: real.slice(0, at) || '/', missing: [real.slice(at + 1)] }
      : { ...walked, state: 'exists', real, thing: { kind: 'file', nlink: 1 } }
  const facts = { path: evidence, roots: roots.map(({ observed }) => observed) }
  return judgePath(policyOf(roots), { path: walked.normal, op }, facts).verdict === 'allow'
}

/** Throws unless the program may create, replace or remove this name. */
export function requireChange(entry: Entry): void {
  const op = entry.stat === undefined ? 'create' : 'delete-recursive'
  if (!allowsName(entry, op)) throw refusedAccess(entry.asked)
}
