import { isInWorkspace } from '../../../model/files/path.ts'
import { applyOption, applyValue, note, touch } from '../effects.ts'
import { boxed } from '../finding.ts'
import { isUnlisted, type Option, type OptionSpec, type Parsed, parseOptions } from '../options.ts'
import { absolute, pathFindings } from '../paths.ts'
import { ANY, isOpen, isStatic } from '../shell/unknown-text.ts'
import type { Call, Handler } from '../walk.ts'

/**
 * The effect of a program on its operands: one effect for all, or a shape. `copy`: the last is written, the others are
 * read; `move`: the others are deleted; `pattern`: the first is data unless an option gave the pattern; `pattern-tree`: the
 * same for whole directories; `pair`: the first is read, the second written; `data-write`: the first is data, the rest is
 * written.
 */
type Operands =
  | 'data'
  | 'list'
  | 'read'
  | 'tree'
  | 'write'
  | 'delete'
  | 'url'
  | 'shell'
  | 'copy'
  | 'move'
  | 'pattern'
  | 'pattern-tree'
  | 'pair'
  | 'data-write'

/** The description of a program: its options, operands and their effects. */
export type ToolSpec = OptionSpec & {
  readonly operands?: Operands
  /** Options that give the pattern, so that no operand is one. */
  readonly patternOptions?: readonly string[]
  /** Further checks that need code. */
  readonly also?: (call: Call, parsed: Parsed) => void
}

/** Builds a handler from a description. */
export function tool(spec: ToolSpec): Handler {
  return (call) => {
    const parsed = parseOptions(spec, call.args)
    applyOptions(call, spec, parsed)
    applyOperands(call, spec, parsed)
    spec.also?.(call, parsed)
    return undefined
  }
}

/** Applies the effects of a command's options, including unknown options and other readings of their values. */
export function applyOptions(call: Call, spec: ToolSpec, parsed: Parsed): void {
  if (parsed.open) note(call, 'an argument is known only when it runs')
  for (const option of parsed.options) {
    applyOption(call, option)
    if (isUnlisted(spec, option))
      call.node.findings.push(
        boxed('programs/option', `\`${option.name}\` is an option that is not known here`),
      )
    if (spec.exact !== undefined || READING.has(spec.operands ?? 'data')) otherReading(call, spec, option)
  }
}

const READING: ReadonlySet<string> = new Set(['list', 'read', 'tree', 'pattern', 'pattern-tree', 'pair'])

/** A count or width above this prints or stores more than any legitimate use. */
const HUGE = /\d{6}/

/**
 * SECURITY: programs with the same name differ between systems: an option with a value on one system is a flag on
 * another, where the value is a file. So the value of an option is also checked as a path, unless it is a pattern.
 */
function otherReading(call: Call, spec: ToolSpec, { name, value, effect }: Option): void {
  if (value === undefined || value === ANY || (effect !== undefined && effect !== 'data')) return
  if (spec.patternOptions?.includes(name)) return
  if (!isStatic(value)) note(call, 'the value of an option is known only when it runs')
  else {
    touch(call, value, 'read')
    if (HUGE.test(value))
      call.node.findings.push(boxed('resource/endless', `\`${name}\` makes it print or keep too much`))
  }
}

/** A table of handlers from descriptions; names are separated by spaces. `exact`: the option tables of fully known programs. */
export function tools(
  table: Readonly<Record<string, ToolSpec>>,
  exact: Readonly<Record<string, string>> = {},
): Readonly<Record<string, Handler>> {
  const out: Record<string, Handler> = {}
  for (const [names, spec] of Object.entries(table)) {
    const handler = tool(spec)
    for (const name of names.split(/\s+/)) {
      const known = exact[name]
      out[name] = known === undefined ? handler : tool({ ...spec, exact: known })
    }
  }
  return out
}

/** One handler for several programs; names are separated by spaces. */
export const names = (list: string, handler: Handler): Readonly<Record<string, Handler>> =>
  Object.fromEntries(list.split(' ').map((name) => [name, handler]))

function applyOperands(call: Call, spec: ToolSpec, { operands, options }: Parsed): void {
  const last = operands.length - 1
  switch (spec.operands ?? 'data') {
    case 'data':
      return
    case 'copy':
    case 'move':
      copy(call, operands, {
        targeted: options.some(isTarget),
        from: spec.operands === 'move' ? 'delete' : 'read',
      })
      return
    case 'pattern':
    case 'pattern-tree': {
      const given = options.some((option) => spec.patternOptions?.includes(option.name))
      const use = spec.operands === 'pattern' ? 'read' : 'tree'
      for (const path of given ? operands : operands.slice(1)) applyValue(call, use, path)
      return
    }
    case 'pair':
      for (const [index, path] of operands.entries())
        applyValue(call, index === last && index > 0 ? 'write' : 'read', path)
      return
    case 'data-write':
      for (const path of operands.slice(1)) applyValue(call, 'write', path)
      return
    default:
      for (const value of operands) applyValue(call, spec.operands as string, value)
  }
}

const isTarget = (option: { readonly name: string }): boolean =>
  option.name === '-t' || option.name === '--target-directory'

/** A move inside the workspace deletes nothing. */
function staysInside(call: Call, source: string, target: string | undefined): boolean {
  const { workspace } = call.walk.context
  const cwds = call.scope.cwds
  if (target === undefined || cwds.length === 0 || isOpen(source) || isOpen(target)) return false
  return cwds.every((cwd) => [source, target].every((path) => isInWorkspace(absolute(path, cwd), workspace)))
}

/** Notes that a path holds credentials; what else reading it would mean is no concern of the caller. */
export function secretsOf(call: Call, path: string): void {
  const found = pathFindings(call.walk, call.scope, path, 'read')
  call.node.findings.push(...found.filter(({ rule }) => rule.startsWith('secrets/')))
}

/** Sources whose content, not they themselves, goes into the target directory: `dir/`, `dir/.`. */
const MERGED = /(^|\/)\.{0,2}$/

/** Copying into a directory adds to it; a directory that holds the workspace or the home is not replaced by a file. */
function writeTarget(call: Call, sources: readonly string[], target: string): void {
  const found = pathFindings(call.walk, call.scope, target, 'write')
  const replaces =
    sources.length > MAX_SOURCES ||
    sources.some((source) => MERGED.test(source)) ||
    call.args.some((arg) => /^(-[a-zA-Z]*T|--no-t)/.test(arg))
  const isContainer = ({ rule }: { readonly rule: string }): boolean =>
    rule === 'destructive/root' || rule === 'destructive/workspace'
  call.node.findings.push(...(replaces ? found : found.filter((finding) => !isContainer(finding))))
}

/** The sources whose names in the target directory are judged. */
const MAX_SOURCES = 16

type Copying = { readonly targeted: boolean; readonly from: string }

function copy(call: Call, operands: readonly string[], { targeted, from }: Copying): void {
  const target = targeted || operands.length < 2 ? undefined : operands.at(-1)
  const sources = target === undefined ? operands : operands.slice(0, -1)
  for (const source of sources) {
    applyValue(call, from === 'delete' && staysInside(call, source, target) ? 'write' : from, source)
    // Under another name it is read without a question.
    if (from === 'delete') secretsOf(call, source)
  }
  if (target === undefined) return
  writeTarget(call, sources, target)
  if (target.startsWith('/dev/')) return
  // A directory as target receives the file under the file's own name.
  for (const source of sources.slice(0, MAX_SOURCES))
    applyValue(call, 'write', `${target}/${source.slice(source.lastIndexOf('/') + 1)}`)
}
