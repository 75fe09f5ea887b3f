import type { CompoundCommand, CompoundList, Redirected } from 'unbash'
import { LazyMap, LazySet } from '../lazy-map.ts'
import { ANY } from './unknown-text.ts'

/** The input or output of a command, as far as it is known. */
export type Stream = {
  /** Text with marks; `ANY` alone if nothing is known. */
  readonly text: string
  /** Where the data came from. */
  readonly from: ReadonlySet<Source>
  /** False if no stream is connected: the caller's terminal or nothing. */
  readonly piped: boolean
}
/** The source of data, as far as it affects its permitted use. */
export type Source = 'network' | 'secret' | 'files' | 'environment' | 'identity' | 'decoded'

const NOWHERE: ReadonlySet<Source> = new Set()

/** No input at all. */
export const CLOSED: Stream = { text: '', from: NOWHERE, piped: false }
/** Input with unknown content. */
export const UNKNOWN: Stream = { text: ANY, from: NOWHERE, piped: true }
/** Input that is known to be empty. */
export const EMPTY: Stream = { text: '', from: NOWHERE, piped: true }

/** Input or output whose text is known. */
export const textStream = (
  text: string,
  from: ReadonlySet<Source> | readonly Source[] = NOWHERE,
): Stream => ({ text, from: from instanceof Set ? from : new Set(from), piped: true })

/** Input or output that came from the network. */
export const FROM_NETWORK: Stream = textStream(ANY, ['network'])

/** Concatenates two streams, as the output of a list of commands. */
export function joined(a: Stream, b: Stream): Stream {
  if (a === EMPTY || a === CLOSED) return b
  if (b === EMPTY || b === CLOSED) return a
  const text = a.text.length + b.text.length > 32_768 ? ANY : a.text + b.text
  const from = b.from.size === 0 ? a.from : new Set([...a.from, ...b.from])
  return { text, from, piped: true }
}

/** A file that the line created before using it. */
type MadeFile =
  | { readonly kind: 'content'; readonly stream: Stream }
  | { readonly kind: 'copy'; readonly of: string }

/** The body of a shell function. */
export type FunctionBody = {
  readonly body: CompoundCommand | Redirected | CompoundList
  readonly cover: (at: number, end: number) => void
  called: boolean
}

/** What a name can mean when it is called: any of these bodies, and the program of that name if no definition is certain. */
type FunctionName = { readonly bodies: readonly FunctionBody[]; readonly mayBeProgram: boolean }

/** The state of the shell at one point of the line. */
export type Scope = {
  /** Values with marks. A name that is absent is inherited from the environment. */
  readonly vars: LazyMap<string>
  /** The source of a variable's value, if it matters later. */
  readonly origins: LazyMap<LazySet>
  readonly arrays: LazyMap<readonly string[]>
  readonly references: LazyMap<string>
  /** Every directory that the command could run in; empty if it could be any. */
  cwds: readonly string[]
  previousCwds: readonly string[]
  readonly functions: LazyMap<FunctionName>
  /** `$0` first; undefined if the caller's arguments are not known. */
  positional: readonly string[] | undefined
  /** Shared by all copies, since there is one file system. */
  readonly files: LazyMap<MadeFile>
  /** Aliases of programs: `hash -p`, `alias`. */
  readonly names: LazyMap<string>
  lastArgument: string
  /** Functions on the call stack, to end recursion. */
  readonly calling: readonly FunctionBody[]
  /** Inside a pipeline or after `&`, which a fork bomb needs. */
  readonly detached: boolean
}

const NOT_CALLED: readonly FunctionBody[] = []

/** The scope of a new shell in a directory. */
export const newScope = (cwd: string): Scope => ({
  vars: new LazyMap(),
  origins: new LazyMap(),
  arrays: new LazyMap(),
  references: new LazyMap(),
  cwds: [cwd],
  previousCwds: [cwd],
  functions: new LazyMap(),
  positional: undefined,
  files: new LazyMap(),
  names: new LazyMap(),
  lastArgument: ANY,
  calling: NOT_CALLED,
  detached: false,
})

/** A copy for a subshell; changes do not affect the parent. */
export function fork(scope: Scope, change?: Partial<Scope>): Scope {
  const copy = copyOf(scope, scope.detached)
  return change ? Object.assign(copy, change) : copy
}

/** A copy for a command inside a pipeline or after `&`. */
export const forkDetached = (scope: Scope): Scope => copyOf(scope, true)

function copyOf(scope: Scope, detached: boolean): Scope {
  return {
    vars: scope.vars.copy(),
    origins: scope.origins.copy(),
    arrays: scope.arrays.copy(),
    references: scope.references.copy(),
    cwds: scope.cwds,
    previousCwds: scope.previousCwds,
    functions: scope.functions.copy(),
    positional: scope.positional,
    files: scope.files,
    names: scope.names.copy(),
    lastArgument: scope.lastArgument,
    calling: scope.calling,
    detached,
  }
}

/** Merges the state of an alternative path into `scope`. Returns true if that changed it. */
export function mergeInto(scope: Scope, other: Scope): boolean {
  let changed = false
  if (mergeVariables(scope.vars, other.vars)) changed = true
  for (const [name, list] of other.arrays.entries()) {
    if (scope.arrays.get(name)?.join('\0') === list.join('\0')) continue
    if (scope.arrays.get(name)?.[0] === ANY) continue
    scope.arrays.set(name, [ANY])
    changed = true
  }
  for (const [name, from] of other.origins.entries())
    scope.origins.set(name, unionOf(from, scope.origins.get(name)))
  if (mergeFunctions(scope.functions, other.functions)) changed = true
  for (const [name, program] of other.names.entries())
    if (!scope.names.has(name)) scope.names.set(name, program)
  if (mergePositional(scope, other)) changed = true
  if (mergeReferences(scope.references, other.references)) changed = true
  if (scope.lastArgument !== other.lastArgument) scope.lastArgument = ANY
  const cwds = mergeCwds(scope.cwds, other.cwds)
  if (cwds.length !== scope.cwds.length) changed = true
  scope.cwds = cwds
  return changed
}

function unionOf(first: LazySet, second: LazySet | undefined): LazySet {
  const all = new LazySet()
  for (const name of first.values()) all.add(name)
  if (second) for (const name of second.values()) all.add(name)
  return all
}

function mergeVariables(into: LazyMap<string>, other: LazyMap<string>): boolean {
  if (into.size === 0 && other.size === 0) return false
  let changed = false
  for (const name of new Set([...into.keys(), ...other.keys()])) {
    if (into.get(name) === other.get(name) || into.get(name) === ANY) continue
    into.set(name, ANY)
    changed = true
  }
  return changed
}

function mergePositional(scope: Scope, other: Scope): boolean {
  if (scope.positional === other.positional) return false
  if (scope.positional?.join('\0') === other.positional?.join('\0')) return false
  scope.positional = undefined
  return true
}

function mergeReferences(into: LazyMap<string>, other: LazyMap<string>): boolean {
  if (into.size === 0 && other.size === 0) return false
  let changed = false
  for (const name of new Set([...into.keys(), ...other.keys()])) {
    const unknown = `${name}?`
    if (into.get(name) === other.get(name) || into.get(name) === unknown) continue
    // No variable has this name, so its value is not known.
    into.set(name, unknown)
    changed = true
  }
  return changed
}

/**
 * SECURITY: a function that only one of the paths defines, removes or replaces keeps every meaning. Otherwise
 * `false && rm() { :; }; rm -rf ~` would hide the program.
 */
function mergeFunctions(into: LazyMap<FunctionName>, other: LazyMap<FunctionName>): boolean {
  if (into.size === 0 && other.size === 0) return false
  let changed = false
  for (const name of new Set([...into.keys(), ...other.keys()])) {
    const [mine, theirs] = [into.get(name), other.get(name)]
    if (mine === theirs) continue
    const known = new Set(mine?.bodies.map(({ body }) => body))
    const added = theirs?.bodies.filter(({ body }) => !known.has(body)) ?? []
    const mayBeProgram = !mine || !theirs || mine.mayBeProgram || theirs.mayBeProgram
    if (mine && added.length === 0 && mine.mayBeProgram === mayBeProgram) continue
    into.set(name, { bodies: [...(mine?.bodies ?? []), ...added], mayBeProgram })
    changed = true
  }
  return changed
}

function mergeCwds(a: readonly string[], b: readonly string[]): readonly string[] {
  if (a.length === 0 || b.length === 0) return []
  if (a.length === 1 && b.length === 1 && a[0] === b[0]) return a
  const all = [...new Set([...a, ...b])]
  return all.length > 4 ? [] : all
}
