import { codeFindings } from '../code.ts'
import { applyOption, runText, touch } from '../effects.ts'
import { boxed, unseen } from '../finding.ts'
import { parseOptions } from '../options.ts'
import { UNKNOWN } from '../shell/scope.ts'
import { isStatic } from '../shell/unknown-text.ts'
import type { Call, Handler } from '../walk.ts'
import { secretsOf } from './tool.ts'

const VIM_RUNS =
  /!|\bsystem(list)?\s*\(|\bterm|\bjob_start|\bexe(cute)?\b|\b(py|py3|lua|perl|ruby|tcl)\b|\bmake\b|\bgrep\b|\bso(urce)?\b|\bread\b|\bw(rite)?\b/

function judgeVim(call: Call, command: string): void {
  if (!VIM_RUNS.test(command)) return
  call.node.findings.push(unseen('editors/command', 'the editor is told to run a command'))
  const shell = /!+\s*(.*)$/s.exec(command)?.[1] ?? /system(?:list)?\s*\(\s*['"]([^'"]*)/.exec(command)?.[1]
  if (shell?.trim()) runText(call, shell)
  else call.node.findings.push(...codeFindings(call.walk, command, 'vim'))
}

const vim: Handler = (call) => {
  const { options, operands } = parseOptions(
    {
      short: 'cSTtuUwWio',
      long: 'cmd startuptime',
      effects: { '-S': 'read', '-u': 'read', '-w': 'write', '-W': 'write', '-i': 'read', '--cmd': 'data' },
    },
    call.args,
  )
  call.node.findings.push(boxed('editors/start', 'starts an editor'))
  for (const option of options) {
    if (option.name === '-c' || option.name === '--cmd') judgeVim(call, option.value ?? '')
    else applyOption(call, option)
    if (option.name === '-S' || option.name === '-u')
      call.node.findings.push(unseen('editors/script', 'the editor runs a script'))
  }
  for (const operand of operands) {
    if (operand[0] === '+') judgeVim(call, operand.slice(1))
    else {
      secretsOf(call, operand)
      touch(call, operand, 'write')
    }
  }
  if (call.stdin.piped) judgeVim(call, call.stdin.text)
  return UNKNOWN
}

/** `ed` and `ex` read commands from their input; `!` runs a shell line. */
const ed: Handler = (call) => {
  call.node.findings.push(boxed('editors/start', 'starts an editor'))
  for (const path of call.args.filter((arg) => arg[0] !== '-')) {
    secretsOf(call, path)
    touch(call, path, 'write')
  }
  if (!call.stdin.piped) return UNKNOWN
  if (!isStatic(call.stdin.text))
    call.node.findings.push(boxed('editors/stream', 'edits by commands that are known only when they run'))
  for (const line of call.stdin.text.split('\n')) {
    const shell = /!(.*)$/.exec(line)?.[1]
    if (shell?.trim()) {
      call.node.findings.push(unseen('editors/command', 'the editor is told to run a command'))
      runText(call, shell)
    }
    const file = /^[wr]\s+(\S+)/.exec(line)?.[1]
    if (file !== undefined && file[0] !== '!') touch(call, file, line[0] === 'w' ? 'write' : 'read')
  }
  return UNKNOWN
}

const emacs: Handler = (call) => {
  const { options, operands } = parseOptions(
    {
      short: 'lfuqte',
      long: 'load eval execute funcall script user',
      effects: { '-l': 'read', '--load': 'read', '--script': 'read' },
    },
    call.args.map((arg) => arg.replace(/^-(eval|load|script|batch|execute|funcall)$/, '--$1')),
  )
  call.node.findings.push(boxed('editors/start', 'starts an editor'))
  for (const option of options) {
    applyOption(call, option)
    if (['--eval', '--execute', '-e'].includes(option.name))
      call.node.findings.push(
        unseen('editors/code', 'the editor runs code'),
        ...codeFindings(call.walk, option.value ?? '', 'emacs'),
      )
  }
  for (const operand of operands) touch(call, operand, 'write')
  return UNKNOWN
}

/** `gdb -ex '!cmd'`, `gdb -batch -ex 'shell cmd'`, `lldb -o`. */
const debuggers: Handler = (call) => {
  const { options, operands } = parseOptions(
    {
      single: true,
      effects: {
        '-ex': 'data',
        '-eval-command': 'data',
        '--eval-command': 'data',
        '-iex': 'data',
        '--ex': 'data',
        '-o': 'data',
        '-x': 'read',
        '--command': 'read',
        '-p': 'data',
        '--pid': 'data',
        '-c': 'read',
      },
    },
    call.args,
  )
  call.node.findings.push(boxed('editors/debugger', 'starts a debugger'))
  for (const option of options) {
    applyOption(call, option)
    if (/^--?(ex|iex|eval-command|o|O)$/.test(option.name)) judgeDebugger(call, option.value ?? '')
    if (/^--?p(id)?$/.test(option.name))
      call.node.findings.push(unseen('editors/attach', 'traces another process'))
  }
  const at = call.args.indexOf('--args')
  if (at !== -1) call.walk.run(call.scope, call.args.slice(at + 1), call.stdin)
  else for (const path of operands.slice(0, 1)) touch(call, path, 'read')
  return UNKNOWN
}

function judgeDebugger(call: Call, command: string): void {
  const shell = /^\s*(?:!|shell\s|make\s|pipe\s|platform shell\s)(.*)$/s.exec(command)?.[1]
  if (shell !== undefined || /^\s*(python|call|script|source)/.test(command))
    call.node.findings.push(unseen('editors/command', 'the debugger is told to run a command'))
  if (shell?.trim()) runText(call, shell)
}

/** Editors and debuggers: they change files and can run any program. */
export const EDITORS: Readonly<Record<string, Handler>> = {
  vim,
  ed,
  emacs,
  emacsclient: emacs,
  gdb: debuggers,
  lldb: debuggers,
  rust_gdb: debuggers,
  ...Object.fromEntries(
    'nano pico micro joe kak helix hx code subl gedit kate'.split(' ').map((name): [string, Handler] => [
      name,
      (call) => {
        call.node.findings.push(boxed('editors/start', 'starts an editor'))
        for (const path of call.args.filter((arg) => arg[0] !== '-' && arg[0] !== '+'))
          touch(call, path, 'write')
        return UNKNOWN
      },
    ]),
  ),
}
