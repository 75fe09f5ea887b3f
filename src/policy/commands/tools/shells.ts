import { boxed, denied, unseen } from '../finding.ts'
import { LazyMap } from '../lazy-map.ts'
import { runFile, runStream } from '../run-file.ts'
import { fork, newScope, UNKNOWN } from '../shell/scope.ts'
import { ANY, isStatic } from '../shell/unknown-text.ts'
import { type Call, deeper, type Handler } from '../walk.ts'
import { names } from './tool.ts'

/** PLATFORM: zsh writes `>!` for `>|`, and `=name` for the path of a program. */
export const fromZsh = (line: string): string =>
  line
    .replace(/(>>?)!(?=\s)/g, '$1|')
    .replaceAll('>>|', '>>')
    .replace(/(^|[;&|(]\s*)=(?=\w)/g, '$1')

const VALUE_LETTERS = 'oO'
const FILE_OPTIONS = new Set(['--rcfile', '--init-file'])

type ShellArgs = {
  readonly line?: string
  readonly files: readonly string[]
  readonly stdin: boolean
  readonly rest: readonly string[]
}

/** `bash -xec 'line' name args…`, `bash script args…`, `bash -s args…`. */
function shellArgs(args: readonly string[]): ShellArgs {
  const files: string[] = []
  let command = false
  let stdin = false
  let at = 0
  for (; at < args.length; at++) {
    const arg = args[at] as string
    if (arg === '--' || arg === '-') {
      at++
      break
    }
    if (!/^[-+]/.test(arg)) break
    if (arg.startsWith('--')) {
      if (FILE_OPTIONS.has(arg)) files.push(args[++at] ?? '')
      else if (/^--(command)$/.test(arg)) command = true
      continue
    }
    if (arg[0] === '-' && arg.includes('c')) command = true
    if (arg[0] === '-' && arg.includes('s')) stdin = true
    for (const letter of arg.slice(1)) if (VALUE_LETTERS.includes(letter)) at++
  }
  const rest = args.slice(at)
  return command && rest[0] !== undefined
    ? { line: rest[0], files, stdin, rest: rest.slice(1) }
    : { files, stdin, rest }
}

/** A shell: its line, script or input is judged as shell source. */
const shell: Handler = (call) => {
  const { line, files, stdin, rest } = shellArgs(call.args)
  call.node.findings.push(boxed('shell/start', 'starts another shell'))
  for (const file of files) runFile(call, file, 'shell')
  if (line !== undefined && call.name === 'zsh' && /[*?\]]\(|\$\{\(/.test(line))
    call.node.findings.push(unseen('shell/zsh', 'a glob qualifier or flag of zsh can run code'))
  if (line !== undefined)
    return runLine(call, call.name === 'zsh' ? fromZsh(line) : line, [rest[0] ?? call.name, ...rest.slice(1)])
  if (!stdin && rest[0] !== undefined) runFile(call, rest[0], 'shell')
  else
    runStream({ ...call, scope: fork(call.scope, { positional: [call.name, ...rest] }) }, call.stdin, 'shell')
  return UNKNOWN
}

function runLine(call: Call, line: string, positional: readonly string[]) {
  if (!isStatic(line)) {
    call.node.findings.push(
      call.walk.sources.has('network')
        ? denied('download/execute', 'runs downloaded code')
        : unseen('shell/dynamic-code', 'runs a shell line that is known only when it runs'),
    )
    if (line === ANY) return UNKNOWN
  }
  const scope = fork(call.scope, { positional, functions: new LazyMap(), names: new LazyMap() })
  return deeper(call.walk, () => call.walk.source(scope, line, call.stdin))
}

/** Shells with another syntax: parsed as bash as far as possible, and never run without approval. */
const foreign: Handler = (call) => {
  call.node.findings.push(
    unseen('shell/foreign', `\`${call.name}\` has a syntax of its own that is not read`),
  )
  const at = call.args.findIndex((arg) => /^(-{1,2}|\/)(c|command|e|encodedcommand|k|ic|lc)$/i.test(arg))
  if (at !== -1) {
    const line = call.args.slice(at + 1).join(' ')
    if (isStatic(line))
      deeper(call.walk, () => call.walk.source(newScope(call.walk.context.workspace), line, call.stdin))
  }
  return UNKNOWN
}

/** Programs that run shell lines. */
export const SHELLS: Readonly<Record<string, Handler>> = {
  ...names('sh bash dash ash zsh ksh mksh yash rbash posh lksh hush bosh', shell),
  ...names('fish csh tcsh pwsh powershell cmd xonsh nu elvish rc es osh ysh scsh ion', foreign),
}
