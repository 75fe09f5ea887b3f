import { asked, boxed, denied, dynamic, type Finding } from './finding.ts'
import {
  ASK_TO_READ,
  AUTOMATION,
  ENDLESS_DEVICES,
  KERNEL_FILES,
  OWN_FILES,
  PLAIN_DEVICES,
  PROJECT_SECRETS,
  SECRETS,
  SHARED,
  SOFT_PROTECTED,
  STARTUP,
  STARTUP_NAMES,
  SYSTEM,
  SYSTEM_SECRETS,
} from './locations.ts'
import {
  below,
  entriesOf,
  firstBelow,
  firstOf,
  type PathPattern,
  protectedGlob,
  protectedName,
  startsWith,
} from './name-patterns.ts'
import type { Scope } from './shell/scope.ts'
import { ANY, BELOW, isOpen, isStatic, meets, SPLIT, show } from './shell/unknown-text.ts'
import { type Context, spend, type Walk } from './walk.ts'

/** `list` shows the name and the size, not the content; `tree` reads everything below; `delete` removes it. */
export type PathUse = 'list' | 'read' | 'tree' | 'write' | 'delete'

function rootOf(path: string): readonly string[] {
  return path.split('/').filter((segment) => segment !== '')
}

/** The directories of a context, split into segments. */
type ContextRoots = {
  readonly workspaces: readonly (readonly string[])[]
  readonly home: readonly string[]
  readonly mounted: readonly (readonly string[])[]
}

/** Cache: one context judges many paths. */
const ROOTS = new WeakMap<Context, ContextRoots>()

function rootsOf(context: Context): ContextRoots {
  let roots = ROOTS.get(context)
  if (!roots) {
    roots = {
      workspaces: [context.workspace, ...(context.own ?? [])].map(rootOf),
      home: rootOf(context.home),
      mounted: (context.mounted ?? []).map(rootOf),
    }
    ROOTS.set(context, roots)
  }
  return roots
}

const SECRET_PATTERNS = entriesOf(SECRETS)
const SYSTEM_SECRET_PATTERNS = entriesOf(SYSTEM_SECRETS)
const ASK_PATTERNS = entriesOf(ASK_TO_READ)
const PROJECT_PATTERNS = entriesOf(PROJECT_SECRETS)
const STARTUP_PATTERNS = entriesOf(STARTUP)
const STARTUP_NAME_PATTERNS = entriesOf(STARTUP_NAMES)
const AUTOMATION_PATTERNS = entriesOf(AUTOMATION)
const SYSTEM_PATTERNS = entriesOf(SYSTEM)
const SHARED_PATTERNS = entriesOf(SHARED)
/** Token files that projects also contain: `ask` inside a workspace, `deny` elsewhere. */
const PROJECT_TOKENS = new Set(['.npmrc', '.pypirc', '.netrc', '.my.cnf', '.docker'])

/** The finding for using a path in this way, if it needs more than `allow`. */
export function pathFindings(walk: Walk, scope: Scope, path: string, use: PathUse): Finding[] {
  // `-` is standard input to most readers; many writers (`shuf -o -`, `tee -`) take it for a file of that name.
  if (path === '' || (path === '-' && use === 'read')) return []
  spend(walk)
  const disguised = disguiseOf(path)
  if (disguised) return [disguised]
  const { cwds } = scope
  if (cwds.length < 2) {
    const only = judge(walk, patternOf(path, cwds[0] ?? ANY), use)
    return only ? [only] : []
  }
  const found: Finding[] = []
  for (const base of cwds) {
    const finding = judge(walk, patternOf(path, base), use)
    if (finding && !found.some((other) => other.reason === finding.reason)) found.push(finding)
  }
  return found
}

// Characters that look like `/` and `.`; letters of another alphabet inside a Latin word.
const LOOKALIKE = /[\u2024\u2044\u2215\u29F8\uFE52\uFF0E\uFF0F]/
const MIXED = /[a-z][\u0370-\u03FF\u0400-\u052F]|[\u0370-\u03FF\u0400-\u052F][a-z]/i

/** A misleading path: files through another process's /proc entry, or look-alike characters. */
function disguiseOf(path: string): Finding | undefined {
  if (path[0] === '/' && /^\/+proc\/+[1-9]\d*\/+(root|cwd|map_files|fd)(\/|$)/.test(path))
    return denied('escape/process', `\`${show(path)}\` is what another process sees`)
  if (LOOKALIKE.test(path) || MIXED.test(path))
    return asked('unicode/lookalike', `\`${show(path)}\` holds letters that look like others`)
  return undefined
}

/** The absolute path with `.`, `..` and aliases of the root resolved; marks are kept. */
export function absolute(path: string, cwd: string): string {
  return patternOf(path, cwd).text
}

const MAX_SEGMENTS = 64

function patternOf(path: string, cwd: string): PathPattern {
  const isAbsolute = path[0] === '/' || path[0] === ANY || path[0] === SPLIT
  if (isAbsolute) return finished(resolved([], path, cwd), path[0] === '/')
  const base = directoryOf(cwd)
  if (path === '.' || path === '') return base.pattern
  return finished(resolved(base.segments.slice(), path, cwd), cwd === '' || cwd[0] === '/')
}

/** Continues a path, segment by segment. */
function resolved(start: string[], path: string, cwd: string): string[] {
  let segments = start
  for (const segment of path.split('/')) {
    if (segment === '' || segment === '.') continue
    if (segment !== '..') segments.push(segment)
    else segments = parentOf(segments)
    if (ALIASED.has(segments[0] ?? '')) segments = unaliased(segments, cwd)
  }
  return segments
}

function finished(found: readonly string[], rooted: boolean): PathPattern {
  // A path this long cannot be opened; it counts as unknown.
  const segments = found.length > MAX_SEGMENTS ? [ANY] : found
  const text = (rooted ? '/' : '') + segments.join('/')
  return { segments, text, open: !rooted || isOpen(text) }
}

/** A directory that relative paths start from. */
type Directory = { readonly segments: readonly string[]; readonly pattern: PathPattern }

const MAX_DIRECTORIES = 64

/** Cache: the commands of many lines start in the same few directories. */
const DIRECTORIES = new Map<string, Directory>()

function directoryOf(cwd: string): Directory {
  let found = DIRECTORIES.get(cwd)
  if (!found) {
    const segments = resolved([], cwd, cwd)
    found = { segments, pattern: finished(segments, cwd === '' || cwd[0] === '/') }
    if (DIRECTORIES.size >= MAX_DIRECTORIES) DIRECTORIES.clear()
    DIRECTORIES.set(cwd, found)
  }
  return found
}

/** SECURITY: the parent of a kernel link is the parent of its target, which is rarely known. */
function parentOf(segments: string[]): string[] {
  const path = segments.join('/')
  if (path === 'dev/fd') return ['proc', 'self']
  // The target of an unknown segment is not known, so its parent is not known either.
  if (isOpen(segments.at(-1) ?? '') || LINKS.test(path)) return [ANY]
  return segments.slice(0, -1)
}

const LINKS =
  /^(dev\/(fd\/.*|stdin|stdout|stderr|core)|proc\/[^/]+\/(task\/[^/]+\/)?(fd\/.*|exe|cwd|root|map_files\/.*|ns\/.*)|proc\/(self|thread-self))$/

/** The first segments of the names that `unaliased` changes. */
const ALIASED = new Set(['proc', 'private'])

// SECURITY: the kernel exposes the root and every directory under other names; they are the same files.
function unaliased(segments: string[], cwd: string): string[] {
  const [first, second, third, fourth] = segments
  if (first === 'proc' && third === 'task' && fourth !== undefined && segments.length > 4)
    return unaliased([first, second as string, ...segments.slice(4)], cwd)
  if (first === 'proc' && third === 'root' && second !== undefined) return []
  if (first === 'proc' && third === 'cwd' && second !== undefined)
    return second === 'self' || second === 'thread-self'
      ? cwd.split('/').filter((part) => part !== '')
      : [ANY]
  if (first === 'private' && (second === 'etc' || second === 'var' || second === 'tmp'))
    return segments.slice(1)
  return segments
}

function inside({ segments }: PathPattern, root: readonly string[]): boolean {
  for (let index = 0; index < root.length; index++) if (segments[index] !== root[index]) return false
  return root.length > 0
}

/** Whether the path is `root` or one of its ancestors. */
const above = (at: PathPattern, root: readonly string[]): boolean =>
  !at.open &&
  at.segments.length <= root.length &&
  at.segments.every((segment, index) => meets(segment, root[index] as string))

function judge(walk: Walk, at: PathPattern, use: PathUse): Finding | undefined {
  const shown = show(at.text) || '/'
  if (use === 'list') return judgeList(walk, judge(walk, at, 'read'), shown)
  // The first segment decides whether it can be a device at all.
  const isSpecial = at.segments[0] === 'dev' || at.segments[0] === 'proc'
  if (isSpecial && PLAIN_DEVICES.test(at.text))
    return ENDLESS_DEVICES.test(at.text) && (use === 'read' || use === 'tree')
      ? boxed('resource/endless', `\`${shown}\` has no end`)
      : undefined
  if (isSpecial && /^\/dev\/(tcp|udp)\//.test(at.text))
    return denied('network/shell-socket', `\`${shown}\` opens a network connection from the shell`)
  const { workspaces, home, mounted } = rootsOf(walk.context)
  const own = workspaces[0] as readonly string[]
  const around = workspaces.find((root) => inside(at, root))
  const workspace = around ?? own
  const inWorkspace = around !== undefined
  // Nothing outside of the sandbox reads its own directories, so no name in them runs code there.
  const isOwn = walk.context.contains !== undefined && workspaces.slice(1).some((root) => inside(at, root))
  const isMounted = mounted.some((root) => inside(at, root))
  const roots = { workspace, home, inWorkspace, inHome: inside(at, home), isOwn, isMounted }
  const secret = judgeSecret(at, shown, use, roots)
  if (secret) return secret
  if (use === 'read' || use === 'tree') return judgeRead(at, shown, use, roots)
  const found = judgeWrite(at, shown, use, roots)
  // A directory above the workspace, also one of /tmp, contains the workspace: no sandbox protects the workspace from this use.
  if (found?.action === 'deny' || inside(at, own) || !above(at, own)) return found
  const reason = `${use === 'delete' ? 'deletes' : 'writes'} \`${shown}\`, which contains the workspace`
  return asked('destructive/workspace', found?.action === 'ask' ? found.reason : reason)
}

/**
 * The names of a project's credential files are no secret, so showing them needs no question. Those outside of the
 * workspace are judged like their content.
 * SECURITY: a name that another command receives is as good as the content: `cat $(ls .env)`.
 */
const judgeList = (walk: Walk, found: Finding | undefined, shown: string): Finding | undefined =>
  found?.rule === 'secrets/project' && passesNothingOn(walk.text)
    ? boxed('paths/broad-read', `lists \`${shown}\``)
    : found

const DISCARDS = /\d?>>?\s*\/dev\/null|2>&1|\|\|/g

/** Whether no command of a line can receive what another one prints: it has no pipe, expansion, redirection or escape. */
const passesNothingOn = (line: string): boolean => !/[|`$<>\\]/.test(line.replace(DISCARDS, ''))

type Roots = {
  readonly workspace: readonly string[]
  readonly home: readonly string[]
  readonly inWorkspace: boolean
  readonly inHome: boolean
  /** In a directory that belongs to the sandbox in which the command runs. */
  readonly isOwn: boolean
  /** Below another host path that is mounted in the sandbox. */
  readonly isMounted: boolean
}

/** A glob that says hardly more than that a name is hidden: `.*`, `.[^.]*`. */
const isVague = (at: PathPattern): boolean =>
  at.segments.some((segment) => /^\.?[\uFDD2-\uFDD5]+$/.test(segment))

function judgeSecret(at: PathPattern, shown: string, use: PathUse, roots: Roots): Finding | undefined {
  const from = roots.inWorkspace ? roots.workspace.length : 0
  const secret = firstOf(at, SECRET_PATTERNS, from)
  if (secret && roots.inWorkspace && PROJECT_TOKENS.has(secret[0] as string))
    return use === 'read' || use === 'tree'
      ? asked('secrets/project', `\`${shown}\` may hold credentials`)
      : undefined
  if (secret && isVague(at)) {
    const reads = use === 'read' || use === 'tree'
    return reads ? asked('secrets/project', `\`${shown}\` may hold credentials`) : undefined
  }
  if (secret)
    return denied(
      roots.inWorkspace || roots.isMounted || at.open ? 'secrets/workspace' : 'secrets/location',
      `\`${shown}\` holds credentials`,
    )
  if (roots.inWorkspace || at.text[0] !== '/') return undefined
  const system = firstBelow(at, SYSTEM_SECRET_PATTERNS, (entry) => !(roots.inHome && entry.length === 1))
  if (!system) return undefined
  const vague = system.some(
    (_, index) => !isStatic(at.segments[index] as string) && (at.segments[index]?.length ?? 0) < 2,
  )
  if (vague && (use === 'read' || use === 'tree'))
    return asked('secrets/location', `\`${shown}\` could reach files of the system`)
  return denied('secrets/system', `\`${shown}\` belongs to the system's credentials or devices`)
}

function judgeRead(at: PathPattern, shown: string, use: PathUse, roots: Roots): Finding | undefined {
  if (at.open && !roots.inWorkspace && !below(at, SHARED_PATTERNS))
    return dynamic(`reads \`${shown}\`, which is known only when it runs`)
  if (use === 'tree' && !roots.inWorkspace && (above(at, roots.home) || at.segments.length === 0))
    return asked('secrets/tree', `reads everything below \`${shown}\`, credentials included`)
  if (roots.inWorkspace) return judgeProjectRead(at, shown, use, roots.workspace.length)
  if (below(at, ASK_PATTERNS))
    return asked('paths/system-read', `\`${shown}\` describes this machine and its users`)
  if (roots.inHome) return boxed('paths/home-read', `\`${shown}\` is in the home directory`)
  if (at.segments[0] === 'home' || at.segments[0] === 'Users')
    return at.segments.length > 1
      ? asked('paths/other-home', `\`${shown}\` belongs to another user`)
      : undefined
  if (KERNEL_FILES.test(at.text)) return boxed('paths/outside-read', `\`${shown}\` is a file of the kernel`)
  if (below(at, SYSTEM_PATTERNS) || below(at, SHARED_PATTERNS)) return undefined
  return at.segments.length > 0
    ? boxed('paths/outside-read', `\`${shown}\` is outside the workspace`)
    : undefined
}

/** A glob or a whole tree that could hold a secret name is read in a sandbox, where such files are hidden. */
function judgeProjectRead(at: PathPattern, shown: string, use: PathUse, from: number): Finding | undefined {
  if (firstOf(at, PROJECT_PATTERNS, from))
    return asked('secrets/project', `\`${shown}\` may hold credentials`)
  const last = at.segments.at(-1) ?? ''
  if (use !== 'tree' && isStatic(last)) return undefined
  const could =
    use === 'tree' ||
    last.includes(BELOW) ||
    firstOf({ segments: [last], text: last, open: at.open }, PROJECT_PATTERNS, 0, meets) ||
    firstOf({ segments: [last], text: last, open: at.open }, SECRET_PATTERNS, 0, meets)
  return could ? boxed('paths/broad-read', `\`${shown}\` could meet files with credentials`) : undefined
}

function judgeWrite(at: PathPattern, shown: string, use: PathUse, roots: Roots): Finding | undefined {
  const verb = use === 'delete' ? 'deletes' : 'writes'
  if (OWN_FILES.test(at.text))
    return denied('tampering/files', `${verb} \`${shown}\`, a record or setting of the sandbox`)
  if (firstOf(at, STARTUP_NAME_PATTERNS) && !(roots.inWorkspace && at.segments.includes('node_modules')))
    return denied(
      roots.inWorkspace || at.open ? 'persistence/workspace' : 'persistence/startup',
      `${verb} \`${shown}\`, which runs when something else starts`,
    )
  if (roots.inWorkspace) return judgeWorkspace(at, shown, use, roots)
  if (at.open) return judgeOpenWrite(at, shown, use)
  if (below(at, SHARED_PATTERNS)) {
    const whole =
      use === 'delete' &&
      SHARED_PATTERNS.all.some(
        (entry) =>
          startsWith(at, entry) &&
          at.segments.length <= entry.length + 1 &&
          /^[\uFDD2\uFDD5]*$/.test(at.segments[entry.length] ?? ''),
      )
    return whole
      ? asked('destructive/shared', `deletes all of \`${shown}\``)
      : boxed('paths/temporary', `${verb} \`${shown}\``)
  }
  if (roots.inHome && at.segments.length > roots.home.length) return judgeHome(at, shown, use, roots)
  if (at.segments.length === 0 || above(at, roots.home) || above(at, roots.workspace))
    return denied('destructive/root', `${verb} \`${shown}\`, which contains everything else`)
  if (below(at, SYSTEM_PATTERNS))
    return denied('destructive/system', `${verb} \`${shown}\`, which belongs to the system`)
  if (/^(home|Users)$/.test(at.segments[0] ?? ''))
    return denied('destructive/other-home', `${verb} \`${shown}\` of another user`)
  return asked('paths/outside-write', `${verb} \`${shown}\` outside the workspace`)
}

function judgeOpenWrite(at: PathPattern, shown: string, use: PathUse): Finding {
  const verb = use === 'delete' ? 'deletes' : 'writes'
  const tail = at.segments.filter((segment) => !isOpen(segment)).join('/')
  if (
    tail !== '' &&
    at.text[0] !== '/' &&
    protectedName(tail) &&
    !SOFT_PROTECTED.has(protectedName(tail) as string)
  )
    return denied('persistence/workspace', `${verb} \`${shown}\`, which runs when something else starts`)
  if (SHARED_PATTERNS.all.some((entry) => entry.every((segment, index) => at.segments[index] === segment)))
    return dynamic(`${verb} \`${shown}\``)
  return {
    ...asked(
      use === 'delete' ? 'paths/open-delete' : 'paths/open-write',
      `${verb} \`${shown}\`, which is known only when it runs`,
    ),
    hard: true,
  }
}

function judgeWorkspace(at: PathPattern, shown: string, use: PathUse, roots: Roots): Finding {
  const inner = at.segments.slice(roots.workspace.length)
  const verb = use === 'delete' ? 'deletes' : 'writes'
  // A name in the pattern, as in `**/*.pyc`, spares the rest.
  const whole = inner.every((segment) => !/[^\uFDD0-\uFDD3\uFDD5]/.test(segment))
  // The sandbox's own directory for temporary files is not the work of anybody.
  if (use === 'delete' && whole && !(roots.isOwn && below(at, SHARED_PATTERNS)))
    return asked('destructive/workspace', 'deletes the whole workspace')
  const name = protectedName(inner.filter(isStatic).join('/')) ?? protectedGlob(inner)
  if (name !== undefined && !roots.isOwn) {
    const reason = `${verb} \`${shown}\`, which is protected: it runs code outside the sandbox later`
    return SOFT_PROTECTED.has(name) || name === '.git' || !inner.every(isStatic)
      ? asked('protect/soft', reason)
      : denied('protect/name', reason)
  }
  if (firstOf(at, AUTOMATION_PATTERNS, roots.workspace.length) && !roots.isOwn)
    return asked('persistence/automation', `${verb} \`${shown}\`, which automation runs`)
  return at.open ? dynamic(`${verb} \`${shown}\``) : boxed('paths/workspace-write', `${verb} \`${shown}\``)
}

function judgeHome(at: PathPattern, shown: string, use: PathUse, roots: Roots): Finding {
  const inner = at.segments.slice(roots.home.length)
  const verb = use === 'delete' ? 'deletes' : 'writes'
  const tail: PathPattern = { segments: inner, text: inner.join('/'), open: false }
  if (protectedName(inner.join('/')) || below(tail, STARTUP_PATTERNS))
    return denied('persistence/startup', `${verb} \`${shown}\`, which runs when something else starts`)
  if (use === 'delete' && /^[\uFDD0-\uFDD3\uFDD5]+$/.test(inner[0] as string))
    return denied('destructive/root', 'deletes everything in the home directory')
  return asked('paths/home-write', `${verb} \`${shown}\` in the home directory`)
}
