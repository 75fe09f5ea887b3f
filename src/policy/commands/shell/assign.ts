import type { Assignment } from 'unbash'
import { BOXED_VARIABLES, COMMAND_VARIABLES, POISONED } from '../environment.ts'
import { boxed, denied, type Finding, unseen } from '../finding.ts'
import { pathFindings } from '../paths.ts'
import { deeper, type Walk } from '../walk.ts'
import { arithmeticText } from './arithmetic.ts'
import { CLOSED, fork, newScope } from './scope.ts'
import { isStatic, SPLIT, show } from './unknown-text.ts'
import { expandWord, type Words } from './words.ts'

const named = (pattern: string, name: string): boolean =>
  pattern.endsWith('*') ? name.startsWith(pattern.slice(0, -1)) : pattern === name

const listed = (names: readonly string[], name: string): boolean =>
  names.some((pattern) => named(pattern, name))

const TRUSTED_PATH =
  /^\/(usr\/(local\/)?)?s?bin$|^\/opt\/homebrew\/s?bin$|^\/usr\/(local\/)?(go|cargo|lib\/[\w.-]+)\/bin$|^\/snap\/bin$/

function pathFinding(value: string): Finding[] {
  if (isStatic(value) && value.split(':').every((dir) => TRUSTED_PATH.test(dir))) return []
  return [unseen('environment/path', 'changes `PATH`, so a name may stand for another program')]
}

const HARMLESS_COMMANDS = new Set([
  'cat',
  'less',
  'more',
  'true',
  ':',
  '',
  'vi',
  'vim',
  'nano',
  'bash',
  '/bin/bash',
  '/bin/sh',
  'gcc',
  'g++',
  'clang',
  'clang++',
  'sccache',
  'ccache',
  'less -R',
  'less -FRX',
])

/** A value that a program later runs is judged as a line of its own. */
function commandFindings(walk: Walk, name: string, value: string): Finding[] {
  if (HARMLESS_COMMANDS.has(value)) return []
  if (isStatic(value)) {
    const scope = newScope(walk.context.cwd ?? walk.context.workspace)
    // Values of pager and editor variables may start with the `|` of LESSOPEN; the command follows it.
    deeper(walk, () => walk.source(fork(scope), value.replace(/^[|!-]+/, ''), CLOSED))
  }
  return [unseen('environment/command', `\`${name}\` is a command that another program runs`)]
}

/** Options in variables that set sizes and warnings and load nothing. */
const PLAIN_OPTIONS: Readonly<Record<string, RegExp>> = {
  NODE_OPTIONS:
    /^(\s*--(max[-_](old|semi)[-_]space[-_]size|stack[-_](size|trace[-_]limit)|unhandled[-_]rejections|dns[-_]result[-_]order|no[-_](warnings|deprecation|experimental[-_]\w+([-_]\w+)*)|trace[-_](warnings|deprecation|uncaught)|enable[-_]source[-_]maps|experimental[-_](vm[-_]modules|specifier[-_]resolution|strip[-_]types)|openssl[-_]legacy[-_]provider|expose[-_]gc|preserve[-_]symlinks)(=[\w.-]+)?)*\s*$/,
  JAVA_TOOL_OPTIONS: /^(\s*-X(mx|ms|ss|mn)\w+|\s*-Dfile\.encoding=[\w-]+)*\s*$/,
  _JAVA_OPTIONS: /^(\s*-X(mx|ms|ss|mn)\w+|\s*-Dfile\.encoding=[\w-]+)*\s*$/,
}

const OWN_SETTINGS =
  /^(RINGFENCE|SANDBOX|SANDBOXD|SANDFORGE|CODEX_SANDBOX|CLAUDE_CODE_SANDBOX)(_|$)|_SANDBOX_(DISABLE|MODE|OFF)|^(DISABLE|NO|SKIP|BYPASS)_SANDBOX/i

const HISTORY = /^HIST(FILE|SIZE|FILESIZE)$/

function findings(walk: Walk, name: string, value: string): Finding[] {
  if (OWN_SETTINGS.test(name))
    return [denied('tampering/environment', `\`${name}\` changes the sandbox's own settings`)]
  if (HISTORY.test(name) && /^0*$|^\/dev\/null$/.test(value))
    return [denied('forensics/history', `\`${name}\` disables the shell history`)]
  // zsh ties `path` to `PATH`; elsewhere it is a name like any other.
  if (name === 'PATH' || (name === 'path' && walk.context.shell?.endsWith('zsh'))) return pathFinding(value)
  if (PLAIN_OPTIONS[name]?.test(value))
    return [boxed('environment/library', `\`${name}\` changes the program`)]
  // INVARIANT: IFS has its effect in the scope; known values are followed, so alone it is only never allowed.
  if (name === 'IFS') return [boxed('environment/ifs', 'changes how words are split')]
  if (/^GIT_TRACE/.test(name) && value[0] === '/')
    return pathFindings(walk, newScope(walk.context.workspace), value, 'write')
  if (name === 'GOFLAGS' && /-(toolexec|exec|vettool)/.test(value))
    return [unseen('environment/command', '`GOFLAGS` makes go start another program')]
  if (listed(BOXED_VARIABLES, name)) return boxedFindings(walk, name, value)
  if (COMMAND_VARIABLES.has(name)) return commandFindings(walk, name, value)
  const poison = POISONED.find((entry) => listed(entry.names, name))
  if (poison) return [unseen('environment/poison', `\`${name}=${show(value).slice(0, 40)}\` ${poison.why}`)]
  if (/\$\(|`/.test(value))
    return [boxed('environment/text', `\`${name}\` holds text that looks like a command`)]
  return []
}

function boxedFindings(walk: Walk, name: string, value: string): Finding[] {
  if (/script_shell|git$|node_options|prefix|registry|proxy/i.test(name) || COMMAND_VARIABLES.has(name)) {
    if (HARMLESS_COMMANDS.has(value)) return []
    return [unseen('environment/poison', `\`${name}\` names a program or a source of packages`)]
  }
  if (/^LD_/.test(name) && !/^[\w./:-]*$/.test(value))
    return [unseen('environment/poison', `\`${name}\` is not known`)]
  const outside =
    /(^|:)\/(tmp|dev|var)\b/.test(value) || (/^\//.test(value) && !value.startsWith(walk.context.workspace))
  if (outside && !name.startsWith('GIT_'))
    return [unseen('environment/poison', `\`${name}\` loads code from elsewhere`)]
  return [boxed('environment/library', `\`${name}\` makes the program load other code`)]
}

/** The finding for setting a variable, for the commands that inherit it. */
export const assign = { findings }

/** `a=(x y)`: the elements are words; a subscript inside is arithmetic. */
export function assignArray(words: Words, assignment: Assignment): void {
  if (assignment.value.type !== 'ArrayValue') return
  const list: string[] = []
  for (const element of assignment.value.elements) {
    if (element.text[0] === '[') {
      arithmeticText(words, element)
      list.push(SPLIT)
    } else list.push(...expandWord(words, element))
  }
  const before = assignment.append ? (words.scope.arrays.get(assignment.name) ?? []) : []
  words.scope.arrays.set(assignment.name, [...before, ...list])
}
