import { runText, touch } from '../effects.ts'
import { boxed, denied, dynamic, unseen } from '../finding.ts'
import { outputOf, programPath } from '../output.ts'
import { absolute } from '../paths.ts'
import { runFile } from '../run-file.ts'
import { assign } from '../shell/assign.ts'
import { CLOSED, EMPTY, textStream, UNKNOWN } from '../shell/scope.ts'
import { ANY, DOTGLOB, globbed, INTEGER, isStatic, SPLIT } from '../shell/unknown-text.ts'
import { type Call, deeper, type Handler } from '../walk.ts'
import { wideFormat } from './machine.ts'

const evaluate: Handler = (call) => {
  const words = call.args[0] === '--' ? call.args.slice(1) : call.args
  call.node.findings.push(boxed('shell/eval', 'evaluates text as shell source'))
  const text = words.join(' ')
  if (!isStatic(text)) {
    const network = call.walk.sources.has('network')
    call.node.findings.push(
      network
        ? denied('download/execute', 'evaluates downloaded code')
        : unseen('shell/eval', 'evaluates text that is known only when it runs'),
    )
    if (text.replace(/[\uFDD0-\uFDEF\s]/g, '') === '') return UNKNOWN
  }
  return deeper(call.walk, () => call.walk.source(call.scope, text, call.stdin))
}

const source: Handler = (call) => {
  const [file] = call.args.filter((arg, index) => !(index === 0 && arg === '--'))
  call.node.findings.push(boxed('shell/source', 'runs a file in this shell'))
  if (file !== undefined) runFile(call, file, 'source')
  return UNKNOWN
}

const cd: Handler = (call) => {
  const { scope, walk } = call
  const target = call.args.filter((arg) => !/^-[LPe@]+$/.test(arg) && arg !== '--')[0] ?? walk.context.home
  const before = scope.cwds
  if (target === '-') scope.cwds = scope.previousCwds
  else if (target[0] === ANY || target[0] === SPLIT) scope.cwds = []
  else scope.cwds = [...new Set((before.length > 0 ? before : [ANY]).map((cwd) => absolute(target, cwd)))]
  scope.previousCwds = before
  if (!isStatic(target))
    call.node.findings.push(dynamic('changes to a directory that is known only when it runs'))
  touch(call, target === '-' ? '.' : '.', 'read')
  return EMPTY
}

/** Names in these builtins may contain a subscript, which bash evaluates. */
function judgeNames(call: Call, names: readonly string[]): void {
  for (const name of names) {
    if (!isStatic(name))
      call.node.findings.push(
        unseen('shell/double-evaluation', 'a variable name that is known only when it runs'),
      )
    else if (/\$\(|`|\$\{/.test(name)) {
      call.node.findings.push(
        unseen('shell/double-evaluation', 'a variable name holds a substitution that bash evaluates'),
      )
      deeper(call.walk, () => call.walk.source(call.scope, `: "${name.replace(/["\\]/g, '')}"`, CLOSED))
    }
  }
}

const VALUE_OPTIONS: Readonly<Record<string, string>> = {
  read: 'adinNptu',
  mapfile: 'dnOsuCc',
  readarray: 'dnOsuCc',
}

const reading: Handler = (call) => {
  const { args, name, scope, stdin } = call
  call.node.findings.push(boxed('shell/read', 'sets variables from its input'))
  const names: string[] = []
  const valued = VALUE_OPTIONS[name] ?? ''
  for (let at = 0; at < args.length; at++) {
    const arg = args[at] as string
    if (arg[0] !== '-' || arg.length < 2) names.push(arg)
    else {
      const letter = [...arg.slice(1)].find((option) => valued.includes(option))
      if (letter === undefined) continue
      const value = arg.slice(arg.indexOf(letter) + 1) || args[++at] || ''
      if (letter === 'C') runText(call, value)
      if (letter === 'a') {
        judgeNames(call, [value])
        scope.arrays.set(value, [SPLIT])
      }
    }
  }
  judgeNames(call, names)
  const line = stdin.text.replace(/\n+$/, '')
  for (const variable of names) {
    call.node.findings.push(...assign.findings(call.walk, variable, ANY))
    if (name !== 'read') scope.arrays.set(variable, [line === '' || line.includes('\n') ? SPLIT : line])
    else scope.vars.set(variable, names.length === 1 && line !== '' && !line.includes('\n') ? line : ANY)
  }
  if (names.length === 0) scope.vars.set('REPLY', ANY)
  return EMPTY
}

/** `declare`, `export` and similar: names and values; the interpreter keeps the values. */
const declaring: Handler = (call) => {
  const { args, node, walk, scope } = call
  const words = args.filter((arg) => !/^[-+]\w+$/.test(arg))
  if (words.length === 0) node.findings.push(boxed('secrets/environment', 'prints variables'))
  for (const word of words) {
    const name = /^(\w+)(\[.*\])?\+?=/s.exec(word)?.[1] ?? word
    const value = word.includes('=') ? word.slice(word.indexOf('=') + 1) : (scope.vars.get(word) ?? '')
    if (word.includes('=') || scope.vars.has(word)) node.findings.push(...assign.findings(walk, name, value))
    judgeNames(call, [word.replace(/=.*$/s, '')])
    if (word.includes('=') && /^\w+$/.test(name)) scope.vars.set(name, value)
  }
  if (args.some((arg) => /^-\w*[in]/.test(arg)) && call.name !== 'export') {
    for (const word of words) scope.vars.set(`${INTEGER}${word.replace(/=.*$/s, '')}`, '1')
    node.findings.push(boxed('shell/double-evaluation', 'declares a variable whose value is evaluated'))
    judgeNames(
      call,
      words.map((word) => word.slice(word.indexOf('=') + 1)),
    )
  }
  return EMPTY
}

const setting: Handler = (call) => {
  const { args, scope, node } = call
  if (args.length === 0) {
    node.findings.push(boxed('secrets/environment', 'prints all variables'))
    return outputOf(call)
  }
  const dashes = args.indexOf('--')
  const first = args.findIndex((arg) => !/^[-+]/.test(arg))
  const words =
    dashes !== -1
      ? args.slice(dashes + 1)
      : first !== -1 && !/^[-+]\w*o$/.test(args[first - 1] ?? '')
        ? args.slice(first)
        : undefined
  if (/(^|\s)\+o history\b/.test(args.join(' ')))
    node.findings.push(denied('forensics/history', 'disables the shell history'))
  if (words) scope.positional = [scope.positional?.[0] ?? 'bash', ...words]
  if (args.some((arg) => /^-\w*x/.test(arg) || arg === 'xtrace') && scope.vars.has('PS4'))
    node.findings.push(unseen('shell/double-evaluation', 'tracing expands `PS4`'))
  return EMPTY
}

const trap: Handler = (call) => {
  const [action, ...signals] = call.args.filter((arg) => arg !== '--')
  call.node.findings.push(boxed('shell/trap', 'sets a command to be run later'))
  if (action !== undefined && signals.length > 0 && action !== '-' && action[0] !== '-') runText(call, action)
  return EMPTY
}

const alias: Handler = (call) => {
  call.node.findings.push(boxed('shell/alias', 'gives a command another name'))
  for (const word of call.args) {
    const at = word.indexOf('=')
    if (at <= 0) continue
    runText(call, word.slice(at + 1))
    call.scope.names.set(word.slice(0, at), `=${word.slice(at + 1)}`)
  }
  return EMPTY
}

const hash: Handler = ({ args, scope, node }) => {
  const at = args.indexOf('-p')
  if (at === -1) return EMPTY
  node.findings.push(unseen('shell/hash', 'makes a name stand for another program'))
  const [path, name] = args.slice(at + 1)
  if (path !== undefined && name !== undefined) scope.names.set(name, path)
  return EMPTY
}

const let_: Handler = (call) => {
  call.node.findings.push(boxed('shell/let', 'evaluates arithmetic'))
  judgeNames(call, call.args)
  return EMPTY
}

/** `test -v name` evaluates the name; numeric comparisons evaluate both sides only inside `[[ ]]`. */
const test: Handler = (call) => {
  for (const [index, arg] of call.args.entries())
    if (arg === '-v' || arg === '-R') judgeNames(call, [call.args[index + 1] ?? ''])
  return EMPTY
}

const printf: Handler = (call) => {
  const at = call.args.findIndex((arg) => /^-v/.test(arg))
  if (at !== 0) {
    wideFormat(call, call.args)
    if (!call.args.every(isStatic)) call.node.findings.push(dynamic('an argument is known only when it runs'))
    return undefined
  }
  const name = call.args[0] === '-v' ? (call.args[1] ?? '') : (call.args[0] as string).slice(2)
  judgeNames(call, [name])
  call.node.findings.push(boxed('shell/printf', 'sets a variable'), ...assign.findings(call.walk, name, ANY))
  const text = outputOf({ ...call, args: call.args.slice(call.args[0] === '-v' ? 2 : 1) }).text
  call.scope.vars.set(name, text)
  return EMPTY
}

const commandLookup: Handler = (call) => {
  const at = call.args.findIndex((arg) => !/^-[pvV]+$/.test(arg))
  const looks = call.args.slice(0, Math.max(0, at)).some((arg) => /[vV]/.test(arg))
  if (looks || at === -1) return textStream(programPath(call.args.slice(Math.max(0, at))) ?? ANY)
  call.node.base = 'none'
  return deeper(call.walk, () => call.walk.run(call.scope, call.args.slice(at), call.stdin))
}

const builtin: Handler = (call) => {
  call.node.base = 'none'
  return call.args.length === 0
    ? EMPTY
    : deeper(call.walk, () => call.walk.run(call.scope, call.args, call.stdin))
}

const exec: Handler = (call) => {
  call.node.base = 'none'
  let at = 0
  while (at < call.args.length && /^-[acl]+$/.test(call.args[at] as string))
    at += (call.args[at] as string).includes('a') ? 2 : 1
  if (call.args[at] === '--') at++
  const rest = call.args.slice(at)
  return rest.length === 0 ? EMPTY : deeper(call.walk, () => call.walk.run(call.scope, rest, call.stdin))
}

const completing: Handler = (call) => {
  const at = call.args.findIndex((arg) => arg === '-C' || arg === '-F' || arg === '-W')
  call.node.findings.push(boxed('shell/complete', 'may run commands for completion'))
  if (at !== -1) runText(call, call.args[at + 1] ?? '')
  const glob = call.args.indexOf('-G')
  if (glob !== -1) return textStream(`${globbed(call.args[glob + 1] ?? '')}\n`)
  const bound = call.name === 'bind' ? call.args.indexOf('-x') : -1
  if (bound !== -1) runText(call, (call.args[bound + 1] ?? '').replace(/^[^:]*:/, ''))
  return undefined
}

const unsetting: Handler = (call) => {
  judgeNames(
    call,
    call.args.filter((arg) => arg[0] !== '-'),
  )
  for (const name of call.args) {
    call.node.findings.push(
      ...assign.findings(call.walk, name, '').filter(({ rule }) => /^(tampering|forensics)/.test(rule)),
    )
    call.scope.vars.delete(name)
    unsetFunction(call, name)
  }
  return EMPTY
}

/** PLATFORM: without `-f`, bash removes a function only if there is no variable of that name. */
function unsetFunction({ args, scope }: Call, name: string): void {
  const found = scope.functions.get(name)
  if (!found || args.some((arg) => /^-\w*v/.test(arg))) return
  if (args.some((arg) => /^-\w*f/.test(arg))) scope.functions.delete(name)
  else scope.functions.set(name, { ...found, mayBeProgram: true })
}

const history: Handler = ({ args, node }) => {
  if (args.some((arg) => /^-\w*[cdwanr]/.test(arg)))
    node.findings.push(denied('forensics/history', 'changes the shell history'))
  else if (args.some((arg) => /^-\w*[spe]/.test(arg)))
    node.findings.push(unseen('shell/history', 'adds to the shell history, or runs what is in it'))
  else node.findings.push(boxed('secrets/history', 'shows what was run before'))
  return undefined
}

const nothing: Handler = () => EMPTY

const shopt: Handler = ({ node, args, scope }) => {
  node.findings.push(boxed('shell/options', 'changes how the shell reads the rest'))
  if (args[0] === '-s' && args.includes('dotglob')) scope.vars.set(DOTGLOB, '1')
  if (args[0] === '-s' && args.includes('nocaseglob'))
    node.findings.push(unseen('shell/options', 'makes globs meet names in other letters'))
  return EMPTY
}

const enable: Handler = (call) => {
  if (call.args.some((arg) => /^-\w*f/.test(arg)))
    call.node.findings.push(unseen('shell/enable', 'loads a library into the shell'))
  return shopt(call)
}

const repeatPrefix: Handler = (call) => {
  call.node.base = 'none'
  const rest = call.name === 'repeat' ? call.args.slice(1) : call.args
  return rest.length === 0 ? EMPTY : deeper(call.walk, () => call.walk.run(call.scope, rest, call.stdin))
}

/** Shell builtins. Builtins that evaluate text are never allowed without a sandbox. */
export const BUILTINS: Readonly<Record<string, Handler>> = {
  eval: evaluate,
  source,
  '.': source,
  cd,
  pushd: cd,
  chdir: cd,
  popd: (call) => cd({ ...call, args: ['-'] }),
  read: reading,
  mapfile: reading,
  readarray: reading,
  declare: declaring,
  typeset: declaring,
  local: declaring,
  export: declaring,
  readonly: declaring,
  integer: declaring,
  set: setting,
  trap,
  alias,
  hash,
  let: let_,
  test,
  '[': test,
  printf,
  command: commandLookup,
  builtin,
  exec,
  compgen: completing,
  complete: completing,
  bind: completing,
  unset: unsetting,
  history,
  fc: history,
  exit: nothing,
  return: nothing,
  break: nothing,
  continue: nothing,
  shift: ({ scope }) => {
    if (scope.positional) scope.positional = [scope.positional[0] ?? 'bash', ...scope.positional.slice(2)]
    return EMPTY
  },
  wait: (call) => {
    const at = call.args.indexOf('-p')
    if (at !== -1) judgeNames(call, [call.args[at + 1] ?? ''])
    return EMPTY
  },
  jobs: nothing,
  umask: nothing,
  getopts: reading,
  ulimit: nothing,
  fg: nothing,
  bg: nothing,
  disown: nothing,
  times: nothing,
  unalias: nothing,
  shopt,
  setopt: shopt,
  emulate: shopt,
  enable,
  zmodload: enable,
  noglob: repeatPrefix,
  nocorrect: repeatPrefix,
  '-': repeatPrefix,
  repeat: repeatPrefix,
  coproc: repeatPrefix,
}
