import type { CompoundCommand, CompoundList, Redirected } from 'unbash'
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
export const textStream = (text: string, from: Iterable<Source> = NOWHERE): Stream => ({
  text,
  from: from instanceof Set ? from : new Set(from),
  piped: true,
})

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
  readonly vars: Map<string, string>
  /** The source of a variable's value, if it matters later. */
  readonly origins: Map<string, ReadonlySet<string>>
  readonly arrays: Map<string, readonly string[]>
  readonly references: Map<string, string>
  /** Every directory that the command could run in; empty if it could be any. */
  cwds: readonly string[]
  previousCwds: readonly string[]
  readonly functions: Map<string, FunctionName>
  /** `$0` first; undefined if the caller's arguments are not known. */
  positional: readonly string[] | undefined
  /** Shared by all copies, since there is one file system. */
  readonly files: Map<string, MadeFile>
  /** Aliases of programs: `hash -p`, `alias`. */
  readonly names: Map<string, string>
  lastArgument: string
  /** Functions on the call stack, to end recursion. */
  readonly calling: readonly FunctionBody[]
  /** Inside a pipeline or after `&`, which a fork bomb needs. */
  readonly detached: boolean
}

/** The scope of a new shell in a directory. */
export const newScope = (cwd: string): Scope => ({
  vars: new Map(),
  origins: new Map(),
  arrays: new Map(),
  references: new Map(),
  cwds: [cwd],
  previousCwds: [cwd],
  functions: new Map(),
  positional: undefined,
  files: new Map(),
  names: new Map(),
  lastArgument: ANY,
  calling: [],
  detached: false,
})

/** Most lines define nothing, and copying an empty map costs far more than making one. */
const copyOf = <K, V>(map: Map<K, V>): Map<K, V> => (map.size === 0 ? new Map() : new Map(map))

/** A copy for a subshell; changes do not affect the parent. */
export function fork(scope: Scope, change?: Partial<Scope>): Scope {
  const copy: Scope = {
    vars: copyOf(scope.vars),
    origins: copyOf(scope.origins),
    arrays: copyOf(scope.arrays),
    references: copyOf(scope.references),
    cwds: scope.cwds,
    previousCwds: scope.previousCwds,
    functions: copyOf(scope.functions),
    positional: scope.positional,
    files: scope.files,
    names: copyOf(scope.names),
    lastArgument: scope.lastArgument,
    calling: scope.calling,
    detached: scope.detached,
  }
  return change ? Object.assign(copy, change) : copy
}

/** Merges the state of an alternative path into `scope`. Returns true if that changed it. */
export function mergeInto(scope: Scope, other: Scope): boolean {
  let changed = false
  const names = scope.vars.size + other.vars.size === 0 ? [] : [...scope.vars.keys(), ...other.vars.keys()]
  for (const name of new Set(names)) {
    if (scope.vars.get(name) === other.vars.get(name) || scope.vars.get(name) === ANY) continue
    scope.vars.set(name, ANY)
    changed = true
  }
  for (const [name, list] of other.arrays) {
    if (scope.arrays.get(name)?.join('\0') === list.join('\0')) continue
    if (scope.arrays.get(name)?.[0] === ANY) continue
    scope.arrays.set(name, [ANY])
    changed = true
  }
  for (const [name, from] of other.origins)
    scope.origins.set(name, new Set([...from, ...(scope.origins.get(name) ?? [])]))
  if (mergeFunctions(scope.functions, other.functions)) changed = true
  for (const [name, program] of other.names) if (!scope.names.has(name)) scope.names.set(name, program)
  if (mergePositional(scope, other)) changed = true
  if (mergeReferences(scope.references, other.references)) changed = true
  if (scope.lastArgument !== other.lastArgument) scope.lastArgument = ANY
  const cwds = mergeCwds(scope.cwds, other.cwds)
  if (cwds.length !== scope.cwds.length) changed = true
  scope.cwds = cwds
  return changed
}

function mergePositional(scope: Scope, other: Scope): boolean {
  if (scope.positional === other.positional) return false
  if (scope.positional?.join('\0') === other.positional?.join('\0')) return false
  scope.positional = undefined
  return true
}

function mergeReferences(into: Map<string, string>, other: ReadonlyMap<string, string>): boolean {
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
function mergeFunctions(into: Map<string, FunctionName>, other: ReadonlyMap<string, FunctionName>): boolean {
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
  const all = [...new Set([...a, ...b])]
  return all.length > 4 ? [] : all
}
