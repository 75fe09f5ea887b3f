import { codeFindings, destroysFiles } from '../code.ts'
import { applyOption, runProgram, touch } from '../effects.ts'
import { asked, boxed, denied, unseen } from '../finding.ts'
import { type OptionSpec, parseOptions } from '../options.ts'
import type { PathUse } from '../paths.ts'
import { runFile, runStream } from '../run-file.ts'
import { UNKNOWN } from '../shell/scope.ts'
import { isStatic } from '../shell/unknown-text.ts'
import type { Call, Handler } from '../walk.ts'
import { PACKAGES } from './packages.ts'

/** Where an interpreter takes its code from. */
type Language = OptionSpec & {
  /** Options whose value is code. */
  readonly code: readonly string[]
  /** Options that name a file that runs before the main program. */
  readonly load?: readonly string[]
  /** Options after which operands are input files of the code. */
  readonly edits?: readonly string[]
  /** Sub-commands that run a file or code. */
  readonly run?: readonly string[]
}

function judgeCode(call: Call, code: string): void {
  if (!isStatic(code) && call.walk.sources.has('network'))
    call.node.findings.push(denied('download/execute', 'runs downloaded code'))
  call.node.findings.push(
    boxed('code/inline', 'runs code from the command line'),
    ...codeFindings(call.walk, code, call.name),
  )
}

function interpreter(language: Language): Handler {
  const effects = {
    ...language.effects,
    ...Object.fromEntries(language.code.map((name) => [name, 'data'])),
    ...Object.fromEntries((language.load ?? []).map((name) => [name, 'data'])),
  }
  const spec = { ...language, effects, prefix: true }
  return (call) => {
    const parsed = parseOptions(spec, call.args)
    let coded = false
    let destroys = false
    for (const option of parsed.options) {
      if (language.code.includes(option.name)) {
        coded = true
        destroys ||= destroysFiles(option.value ?? '')
        judgeCode(call, option.value ?? '')
      } else if (language.load?.includes(option.name)) judgeLoad(call, option.value ?? '')
      else applyOption(call, option)
    }
    const inPlace = parsed.options.some(({ name }) => name === '-i' || name.startsWith('-i'))
    if (coded) {
      const edits = language.edits !== undefined
      for (const path of parsed.operands)
        if (edits || /[/.~]/.test(path))
          touch(call, path, destroys ? 'delete' : inPlace && edits ? 'write' : 'read')
      return UNKNOWN
    }
    const operands = language.run?.includes(parsed.operands[0] ?? '')
      ? parsed.operands.slice(1).filter((word) => word[0] !== '-')
      : parsed.operands
    judgeScript(call, operands, parsed.options.length > 0)
    return UNKNOWN
  }
}

function judgeLoad(call: Call, file: string): void {
  if (/^(data|https?):/.test(file))
    call.node.findings.push(unseen('code/load', `loads code from \`${file.slice(0, 40)}\``))
  else if (/^[./~]/.test(file)) runFile(call, file, call.name)
  else call.node.findings.push(boxed('code/load', `loads \`${file.slice(0, 40)}\``))
}

function judgeScript(call: Call, operands: readonly string[], optioned: boolean): void {
  const [file, ...rest] = operands
  if (file !== undefined) {
    if (/^https?:/.test(file))
      call.node.findings.push(denied('download/execute', 'runs code from the network'))
    else runFile(call, file, call.name)
    for (const path of rest) if (/^([~/]|\.\.)/.test(path)) touch(call, path, 'read')
  } else if (call.stdin.piped) runStream(call, call.stdin, call.name)
  else if (!optioned) call.node.findings.push(boxed('code/interactive', 'starts an interpreter'))
}

/** The effects of Python modules on their path arguments. */
const MODULE_USES: Readonly<Record<string, PathUse>> = {
  zipfile: 'tree',
  tarfile: 'tree',
  gzip: 'tree',
  base64: 'tree',
  venv: 'write',
  virtualenv: 'write',
  compileall: 'write',
}

/** Python modules that run code, serve files over the network or act as separate programs. */
const python: Handler = (call) => {
  const at = call.args.findIndex((arg) => /^-[a-zA-Z]*m$/.test(arg) || /^-m./.test(arg))
  const code = call.args.findIndex((arg) => /^-[a-zA-Z]*c/.test(arg))
  if (at === -1 || (code !== -1 && code < at)) return PYTHON(call)
  const attached = /^-m(.+)/.exec(call.args[at] as string)?.[1]
  const module = attached ?? call.args[at + 1] ?? ''
  const rest = call.args.slice(attached === undefined ? at + 2 : at + 1)
  return judgeModule(call, module, rest)
}

function judgeModule(call: Call, module: string, rest: readonly string[]): ReturnType<Handler> {
  call.node.findings.push(boxed('code/module', `runs the module \`${module.slice(0, 40)}\``))
  if (/^(timeit|cProfile|profile|trace|pdb|code|doctest|IPython)$/.test(module)) {
    for (const text of rest) if (/[\s(;]/.test(text)) judgeCode(call, text)
  }
  if (/^(http\.server|smtpd|SimpleHTTPServer|pydoc|pyftpdlib|xmlrpc\.server)$/.test(module))
    call.node.findings.push(asked('network/listen', 'serves files on the network'))
  if (module === 'pip' || module === 'uv') return PACKAGES[module]?.({ ...call, name: module, args: rest })
  for (const path of rest) if (/^([~/]|\.\.)/.test(path)) touch(call, path, MODULE_USES[module] ?? 'read')
  return UNKNOWN
}

const PYTHON = interpreter({ short: 'cmWXQ', code: ['-c'], effects: {} })

const bun: Handler = (call) => {
  if (call.args.some((arg) => /^(-e|--eval|-p|--print)(=|$)/.test(arg)))
    return interpreter({ code: ['-e', '--eval', '-p', '--print'], load: ['-r', '--preload'] })(call)
  if (/\.[cm]?[jt]sx?$/.test(call.args[0] ?? '')) return interpreter({ code: [] })(call)
  return PACKAGES.npm?.(call)
}

const deno: Handler = (call) => {
  const [sub, ...rest] = call.args
  if (sub === 'eval' || sub === 'repl') {
    for (const text of rest.filter((word) => word[0] !== '-')) judgeCode(call, text)
    return UNKNOWN
  }
  return interpreter({
    code: ['-e', '--eval'],
    run: ['run', 'test', 'bench', 'serve', 'task'],
    long: 'import-map config lock cert location',
  })(call)
}

const node = interpreter({
  short: 'erpC',
  long: 'title max-old-space-size stack-size conditions diagnostic-dir test-name-pattern test-reporter inspect-port env-file',
  code: ['-e', '--eval', '-p', '--print', '-pe'],
  load: ['-r', '--require', '--import', '--loader', '--experimental-loader'],
  effects: {
    '--env-file': 'read',
    '--inspect': 'ask: opens a debugger to the network',
    '--inspect-brk': 'ask: opens a debugger to the network',
    '--openssl-config': 'read',
    '--snapshot-blob': 'read',
  },
})

/** `node -p x`, where code follows `-p`, and `-pe code`. */
const nodeCall: Handler = (call) =>
  node({ ...call, args: call.args.map((arg) => (/^-[pe]{2}$/.test(arg) ? '-e' : arg)) })

const perl = interpreter({
  short: 'eEFMmIxCD0l',
  code: ['-e', '-E'],
  edits: ['-n', '-p', '-i'],
  load: ['-M', '-m'],
  effects: { '-d': 'ask: starts a debugger' },
})

/** perl and ruby take `-i.bak`, `-l012`, `-0777` and `-F,` attached, so bundles are split first. */
function unbundled(args: readonly string[]): readonly string[] {
  const out: string[] = []
  for (const [index, arg] of args.entries()) {
    const match = /^-([a-zA-Z0-9]*?)([eE])$/.exec(arg)
    if (match && arg[1] !== '-') {
      for (const letter of (match[1] as string).replace(/[0-9l]+/g, '')) out.push(`-${letter}`)
      out.push(`-${match[2]}`)
    } else if (/^-i\S+$/.test(arg)) out.push('-i')
    else if (/^-[l0]\d*$/.test(arg)) continue
    else if (/^-[nplasw]*i[nplasw]*$/.test(arg)) for (const letter of arg.slice(1)) out.push(`-${letter}`)
    else out.push(arg)
    if (index > 4096) break
  }
  return out
}

const ruby = interpreter({ short: 'eErICFKTx', code: ['-e'], load: ['-r'], edits: ['-n', '-p', '-i'] })

const simple = (code: readonly string[], extra: Partial<Language> = {}): Handler =>
  interpreter({ code, ...extra })

const JAVA = simple([], {
  single: true,
  effects: {
    '-cp': 'data',
    '-classpath': 'data',
    '--class-path': 'data',
    '-jar': 'read',
    '-javaagent': 'ask: loads an agent',
  },
})

/** Options of the virtual machine that start a command or load code. */
const java: Handler = (call) => {
  for (const arg of call.args) {
    const hook = /^-XX:On(?:OutOfMemoryError|Error)=(.*)$/s.exec(arg)?.[1]
    if (hook !== undefined) runProgram(call, hook)
    if (/^-(javaagent|agentpath|agentlib):/.test(arg))
      call.node.findings.push(asked('code/load', 'loads an agent into the program'))
  }
  return JAVA(call)
}

/** Interpreters: their code runs in a sandbox at best; code with obvious signs of harm needs approval or is denied. */
export const INTERPRETERS: Readonly<Record<string, Handler>> = {
  python,
  ipython: PYTHON,
  node: nodeCall,
  'ts-node': nodeCall,
  tsx: nodeCall,
  bun,
  deno,
  perl: (call) => perl({ ...call, args: unbundled(call.args) }),
  ruby: (call) => ruby({ ...call, args: unbundled(call.args) }),
  irb: ruby,
  php: simple(['-r', '-B', '-R', '-E'], {
    short: 'rBREdfczStF',
    load: ['-F'],
    effects: {
      '-f': 'read',
      '-c': 'read',
      '-S': 'ask: serves files on the network',
      '-d': 'ask: settings that can load code',
    },
  }),
  lua: simple(['-e'], { short: 'el', load: ['-l'] }),
  tclsh: simple([]),
  wish: simple([]),
  osascript: simple(['-e'], { short: 'els' }),
  Rscript: simple(['-e'], { short: 'e' }),
  R: simple(['-e'], { short: 'e', effects: { '-f': 'read', '--file': 'read' } }),
  julia: simple(['-e', '-E', '--eval', '--print'], { short: 'eELJC', load: ['-L', '--load'] }),
  elixir: simple(['-e', '--eval'], { short: 'er', load: ['-r'] }),
  erl: simple(['-eval'], { single: true, effects: { '-pa': 'read', '-s': 'data', '-run': 'data' } }),
  groovy: simple(['-e'], { short: 'ec' }),
  scala: simple(['-e'], { short: 'ec' }),
  kotlin: simple(['-e']),
  // It has no `-e`; the code interpreter writes Java so.
  jshell: simple(['-e'], { short: 'sRe' }),
  swift: simple(['-e']),
  ghc: simple(['-e'], { single: true }),
  ghci: simple(['-e']),
  runhaskell: simple(['-e']),
  ocaml: simple(['-e']),
  guile: simple(['-c'], { short: 'cls', load: ['-l'] }),
  racket: simple(['-e', '--eval'], { short: 'er', load: ['-r'] }),
  sbcl: simple(['--eval'], { long: 'eval load', load: ['--load'] }),
  clisp: simple(['-x']),
  clojure: simple(['-e', '--eval'], { single: true }),
  bb: simple(['-e', '--eval']),
  gnuplot: simple(['-e'], { short: 'e' }),
  octave: simple(['--eval'], { long: 'eval' }),
  matlab: simple(['-r', '-batch'], { single: true }),
  maxima: simple(['--batch-string'], { long: 'batch-string' }),
  gjs: simple(['-c'], { short: 'c' }),
  qjs: simple(['-e', '--eval'], { short: 'e' }),
  d8: simple(['-e']),
  rhino: simple(['-e']),
  jjs: simple([]),
  java,
  m4: simple([]),
  ansible: simple(['-a'], { short: 'aimu' }),
  dart: simple([], { run: ['run', 'test'] }),
}
