import { addressFindings } from '../address.ts'
import { assign } from '../assign.ts'
import { applyOption, runText, touch } from '../effects.ts'
import { asked, boxed, denied, dynamic, unseen } from '../finding.ts'
import { isStatic, SPLIT } from '../marks.ts'
import { type OptionSpec, parseOptions } from '../options.ts'
import { outputOf } from '../output.ts'
import { fork, UNKNOWN } from '../scope.ts'
import { type Call, deeper, type Handler } from '../walk.ts'

/** A program whose operands, after `skip` of its own, are another command. */
type Wrapper = OptionSpec & {
  readonly skip?: number
  /** `NAME=value` operands before the command are put into its environment. */
  readonly assigns?: boolean
  /** The command is one string for a shell. */
  readonly line?: boolean
  /** Why it is denied whatever it starts. */
  readonly deny?: string
  /** Why it is asked about whatever it starts. */
  readonly ask?: string
  /** A sub-command must come first for it to be a wrapper at all. */
  readonly after?: readonly string[]
}

/** Judges the command inside a wrapper. */
function runInner(call: Call, argv: readonly string[], line: boolean): ReturnType<Handler> {
  if (argv.length === 0) return undefined
  const text = argv.join(' ')
  if (line || (argv.length === 1 && /\s/.test(text))) {
    runText(call, text)
    return UNKNOWN
  }
  return deeper(call.walk, () => call.walk.run(call.scope, argv, call.stdin))
}

function wrapper(spec: Wrapper): Handler {
  const options = { ...spec, prefix: true }
  return (call) => {
    const args = afterSubcommand(spec, call.args)
    if (!args) return undefined
    const parsed = parseOptions(options, args)
    if (spec.deny !== undefined) call.node.findings.push(denied(`privilege/${call.name}`, spec.deny))
    else if (spec.ask !== undefined) call.node.findings.push(asked(`wrappers/${call.name}`, spec.ask))
    else call.node.base = 'none'
    for (const option of parsed.options) applyOption(call, option)
    const rest = parsed.operands.slice(spec.skip ?? 0)
    return spec.assigns ? runWithAssignments(call, rest) : runInner(call, rest, spec.line === true)
  }
}

function afterSubcommand(spec: Wrapper, args: readonly string[]): readonly string[] | undefined {
  if (!spec.after) return args
  const at = args.findIndex((arg) => arg[0] !== '-')
  return at !== -1 && spec.after.includes(args[at] as string) ? args.slice(at + 1) : undefined
}

/** `env A=1 B=2 cmd`: the assignments poison like any other. */
function runWithAssignments(call: Call, operands: readonly string[]): ReturnType<Handler> {
  const scope = fork(call.scope)
  let at = 0
  for (; at < operands.length && /^\w+=/.test(operands[at] as string); at++) {
    const [name, value] = splitAssignment(operands[at] as string)
    call.node.findings.push(...assign.findings(call.walk, name, value))
    scope.vars.set(name, value)
  }
  if (operands[at] === '--') at++
  if (at === operands.length) {
    call.node.findings.push(boxed('secrets/environment', 'prints environment variables'))
    return outputOf({ ...call, name: 'env' })
  }
  return deeper(call.walk, () => call.walk.run(scope, operands.slice(at), call.stdin))
}

const splitAssignment = (text: string): readonly [string, string] => [
  text.slice(0, text.indexOf('=')),
  text.slice(text.indexOf('=') + 1),
]

const env: Handler = (call) => {
  const { options, operands } = parseOptions(
    {
      short: 'uCS',
      long: 'unset chdir split-string block-signal default-signal ignore-signal argv0',
      prefix: true,
      effects: { '-C': 'read' },
    },
    call.args,
  )
  call.node.base = 'none'
  const text = options.find(({ name }) => name === '-S' || name === '--split-string')?.value
  const scope = fork(call.scope)
  const dir = options.find(({ name }) => name === '-C' || name === '--chdir')?.value
  if (dir !== undefined) scope.cwds = []
  if (text === undefined) return runWithAssignments({ ...call, scope }, operands)
  call.node.findings.push(boxed('wrappers/env-split', 'splits one text into a command'))
  if (isStatic(text)) runText(call, [text, ...operands].join(' '))
  else call.node.findings.push(unseen('wrappers/env-split', 'a command that is known only when it runs'))
  return UNKNOWN
}

const XARGS = {
  short: 'IniLlPsdEea',
  long: 'replace max-args max-lines max-procs max-chars delimiter eof arg-file process-slot-var',
  effects: { '-a': 'read', '--arg-file': 'read' },
  prefix: true,
}

const xargs: Handler = (call) => {
  // -i, -e and -l take their value only attached.
  const args = call.args.map((arg) => (/^-[iel]$/.test(arg) ? '-r' : arg))
  const { options, operands } = parseOptions(XARGS, args)
  for (const option of options) applyOption(call, option)
  call.node.base = 'none'
  const mark =
    options.find(({ name }) => name === '-I' || name === '--replace')?.value ??
    (call.args.some((arg) => arg === '-i') ? '{}' : undefined)
  const text = call.stdin.piped ? call.stdin.text : SPLIT
  const items =
    isStatic(text) || !/[\uFDD0\uFDD1]/.test(text)
      ? text
          .split(/[\s\0]+/)
          .filter((item) => item !== '')
          .slice(0, 64)
      : [SPLIT]
  const command = operands.length > 0 ? operands : ['echo']
  const runs =
    mark === undefined || mark === ''
      ? [[...command, ...(items.length > 0 ? items : [SPLIT])]]
      : (items.length > 0 ? items : [SPLIT])
          .slice(0, 8)
          .map((item) => command.map((word) => word.replaceAll(mark, item)))
  // A shell whose line comes from the input runs whatever arrives.
  const fed = /^-\w*c$/.test(command.at(-1) ?? '') || (mark !== undefined && command.at(-1) === mark)
  if (/^(.*\/)?(ba|da|z|k|a)?sh$/.test(command[0] ?? '') && fed)
    call.node.findings.push(
      call.stdin.from.has('network')
        ? denied('download/execute', 'runs what was just downloaded')
        : unseen('wrappers/xargs-shell', 'a shell runs lines from its input'),
    )
  for (const argv of runs) deeper(call.walk, () => call.walk.run(call.scope, argv, UNKNOWN))
  return UNKNOWN
}

const direnvExec = wrapper({ after: ['exec'], skip: 1 })

const direnv: Handler = (call) => {
  if (/^(allow|permit|grant|edit)$/.test(call.args[0] ?? ''))
    call.node.findings.push(asked('protect/soft', 'lets a file run whenever a shell enters the directory'))
  return direnvExec(call)
}

const PARALLEL = {
  short: 'jaINnLSdP',
  long: 'jobs arg-file colsep delay retries joblog results tmpdir sshlogin basefile delimiter',
  effects: {
    '-a': 'read',
    '--arg-file': 'read',
    '--joblog': 'write',
    '--results': 'write',
    '-S': 'ask: runs on other machines',
    '--sshlogin': 'ask: runs on other machines',
  },
  prefix: true,
}

/** `parallel cmd {} ::: a b`, or lines of its input as commands. */
const parallel: Handler = (call) => {
  const { options, operands } = parseOptions(PARALLEL, call.args)
  for (const option of options) applyOption(call, option)
  const at = operands.findIndex((word) => /^:::+\+?$/.test(word))
  const command = at === -1 ? operands : operands.slice(0, at)
  const values =
    at === -1
      ? isStatic(call.stdin.text)
        ? call.stdin.text.split('\n').filter((line) => line !== '')
        : [SPLIT]
      : operands.slice(at + 1)
  for (const value of values.slice(0, 16)) {
    const words = command.some((word) => word.includes('{'))
      ? command.map((word) => word.replace(/\{[/.#%\d]*\}/g, value))
      : [...command, value]
    if (isStatic(words.join(' '))) runText(call, words.join(' '))
    else deeper(call.walk, () => call.walk.run(call.scope, words, UNKNOWN))
  }
  return UNKNOWN
}

/** `su -c line user`, `runuser`. */
const su: Handler = (call) => {
  call.node.findings.push(denied(`privilege/${call.name}`, 'acts as another user'))
  const { options, operands } = parseOptions(
    { short: 'csgGwu', long: 'command shell group user', effects: {} },
    call.args,
  )
  const line = options.find(({ name }) => name === '-c' || name.startsWith('--comm'))?.value
  if (line !== undefined) runText(call, line)
  else if (options.some(({ name }) => name === '-u')) runInner(call, operands, false)
  return UNKNOWN
}

const flock: Handler = (call) => {
  const { options, operands } = parseOptions(
    { short: 'wEc', long: 'wait timeout conflict-exit-code command', prefix: true },
    call.args,
  )
  call.node.base = 'none'
  if (operands[0] !== undefined && !/^\d+$/.test(operands[0])) touch(call, operands[0], 'write')
  const line =
    options.find(({ name }) => name === '-c')?.value ??
    (operands[1] === '-c' || operands[1] === '--command' ? operands[2] : undefined)
  if (line !== undefined) runText(call, line)
  else runInner(call, operands.slice(1), false)
  return UNKNOWN
}

const script: Handler = (call) => {
  const { options, operands } = parseOptions(
    {
      short: 'cEITOBmo',
      long: 'command echo log-io log-timing',
      effects: { '-O': 'write', '-I': 'write', '-T': 'write' },
    },
    call.args,
  )
  for (const option of options) applyOption(call, option)
  const line = options.find(({ name }) => name === '-c' || name === '--command')?.value
  if (line !== undefined) runText(call, line)
  // PLATFORM: on BSD and macOS the operands after the file are the command.
  if (operands[0] !== undefined) touch(call, operands[0], 'write')
  if (operands.length > 1) runInner(call, operands.slice(1), false)
  call.node.findings.push(boxed('wrappers/script', 'starts a shell and records it'))
  return UNKNOWN
}

const SSH = {
  short: 'bBcDeEFiIJlLmOopQRSwW',
  effects: {
    '-i': 'read',
    '-F': 'read',
    '-E': 'write',
    '-R': 'deny: opens a way in from outside',
    '-D': 'ask: opens a proxy',
    '-L': 'ask: opens a tunnel',
    '-w': 'deny: opens a network tunnel',
    '-o': 'data',
  },
  prefix: true,
}
const SSH_RUNS =
  /^(proxycommand|localcommand|knownhostscommand|permitlocalcommand|pkcs11provider|securitykeyprovider|proxyusefdpass|include|match)\s*[= ]/i

/** `-R` and `-w` take a value too, so they stay in `short`; their effect is that they are there. */
const ssh: Handler = (call) => {
  const { options, operands } = parseOptions(SSH, call.args)
  for (const option of options) {
    if (option.name === '-o') judgeSshOption(call, option.value ?? '')
    else if (option.name === '-R' || option.name === '-w')
      call.node.findings.push(denied('network/tunnel', 'opens a way in from outside'))
    else applyOption(call, option)
  }
  const [host, ...command] = operands
  call.node.findings.push(asked('network/ssh', 'works on another machine'))
  if (host !== undefined)
    call.node.findings.push(...addressFindings(call.walk, call.scope, host.replace(/^.*@/, '')))
  if (call.stdin.piped && (call.stdin.from.size > 0 || /[\uFDD0\uFDD1]/.test(call.stdin.text)))
    call.node.findings.push(denied('exfiltration/ssh', 'sends data to another machine'))
  if (command.length > 0) runText(call, command.join(' '))
  return UNKNOWN
}

function judgeSshOption(call: Call, value: string): void {
  if (!SSH_RUNS.test(value)) return
  call.node.findings.push(
    unseen('network/ssh-option', `\`${value.slice(0, 40)}\` runs a command on this machine`),
  )
  runText(call, value.replace(SSH_RUNS, '').trim())
}

/** `busybox rm …`: the applet is the program. */
const multicall: Handler = (call) => {
  const rest = call.args[0]?.startsWith('--') ? call.args.slice(1) : call.args
  if (rest.length === 0) return undefined
  call.node.base = 'none'
  return deeper(call.walk, () => call.walk.run(call.scope, rest, call.stdin))
}

const watch: Handler = (call) => {
  const { operands } = parseOptions({ short: 'nq', long: 'interval equexit', prefix: true }, call.args)
  call.node.base = 'none'
  if (operands.length > 0) runText(call, operands.join(' '))
  return UNKNOWN
}

/** `start-stop-daemon --exec prog -- args`. */
const daemon: Handler = (call) => {
  call.node.findings.push(asked('wrappers/daemon', 'starts a service'))
  const at = call.args.findIndex((arg) => /^(-x|--exec|-a|--startas)(=|$)/.test(arg))
  const dashes = call.args.indexOf('--')
  const program = at === -1 ? undefined : (/=(.*)/.exec(call.args[at] as string)?.[1] ?? call.args[at + 1])
  if (program !== undefined)
    runInner(call, [program, ...(dashes === -1 ? [] : call.args.slice(dashes + 1))], false)
  return UNKNOWN
}

/** Terminal multiplexers: any operand with a blank is a line for a shell. */
const multiplexer: Handler = (call) => {
  call.node.findings.push(boxed('wrappers/terminal', 'starts commands in another terminal'))
  const { operands } = parseOptions({ short: 'ScefFLnstTxyhlp', prefix: false }, call.args)
  for (const text of operands.filter((operand) => /\s/.test(operand))) runText(call, text)
  const at = call.args.findIndex((arg) =>
    /^-d?m$|^-dm\w*$|^(new-session|new|new-window|neww|split-window|splitw|run-shell|run|respawn-pane|send-keys|send|popup|if-shell|pipe-pane)$/.test(
      arg,
    ),
  )
  if (at !== -1) {
    const rest = parseOptions({ short: 'ScefFLnstTxyhlp', prefix: true }, call.args.slice(at + 1)).operands
    if (rest.length > 0 && rest.every((word) => !/\s/.test(word)))
      runInner(
        call,
        rest.filter((word) => word !== 'Enter' && word !== 'C-m'),
        false,
      )
  }
  return UNKNOWN
}

/** `at now < file`: its input is a shell script that runs later. */
const later: Handler = (call) => {
  call.node.findings.push(denied('persistence/schedule', 'runs commands later, outside this session'))
  if (isStatic(call.stdin.text) && call.stdin.piped) runText(call, call.stdin.text)
  return UNKNOWN
}

const strace: Handler = (call) => {
  const { options, operands } = parseOptions(
    { short: 'aeEIopPsSuUXb', effects: { '-o': 'write' }, prefix: true },
    call.args,
  )
  for (const option of options) applyOption(call, option)
  if (options.some(({ name }) => name === '-p'))
    call.node.findings.push(denied('escape/trace', 'looks into another process'))
  if (options.some(({ name, value }) => name === '-o' && /^[|!]/.test(value ?? '')))
    call.node.findings.push(unseen('wrappers/strace', 'pipes into a command'))
  call.node.findings.push(boxed('wrappers/trace', 'runs under a tracer'))
  return runInner(call, operands, false)
}

/** Several strings, each a line: `concurrently "a" "b"`, `hyperfine 'cmd'`. */
const lines: Handler = (call) => {
  const { operands } = parseOptions(
    {
      short: 'nNcwpSMmrLDE',
      long: 'names warmup runs min-runs max-runs parameter-list prepare setup cleanup export-json export-markdown shell',
      effects: {
        '--prepare': 'shell',
        '--setup': 'shell',
        '--cleanup': 'shell',
        '--export-json': 'write',
        '--export-markdown': 'write',
      },
    },
    call.args,
  )
  call.node.findings.push(boxed('wrappers/lines', 'runs several commands'))
  for (const text of operands) runText(call, text)
  return UNKNOWN
}

const loader: Handler = (call) => {
  const { operands } = parseOptions(
    {
      long: 'library-path preload audit argv0 inhibit-rpath',
      effects: { '--preload': 'program', '--audit': 'program' },
      prefix: true,
    },
    call.args,
  )
  call.node.findings.push(unseen('wrappers/loader', 'starts a program through the dynamic loader'))
  return runInner(call, operands, false)
}

const names = (list: string, handler: Handler): Readonly<Record<string, Handler>> =>
  Object.fromEntries(list.split(' ').map((name) => [name, handler]))

/** Programs that start other programs. What they start is judged as if it stood alone, to any depth. */
export const WRAPPERS: Readonly<Record<string, Handler>> = {
  env,
  xargs,
  parallel,
  flock,
  script,
  ssh,
  slogin: ssh,
  autossh: (call) =>
    ssh({ ...call, args: call.args.filter((arg, index) => arg !== '-M' && call.args[index - 1] !== '-M') }),
  mosh: ssh,
  watch,
  'start-stop-daemon': daemon,
  'ld.so': loader,
  ...names('busybox toybox', multicall),
  ...names('su runuser', su),
  ...names('tmux screen zellij', multiplexer),
  ...names('at batch atq', later),
  ...names('strace ltrace dtruss', strace),
  ...names('concurrently hyperfine npm-run-all run-p run-s', lines),
  nice: wrapper({ short: 'n', long: 'adjustment' }),
  nohup: wrapper({}),
  timeout: wrapper({ short: 'ks', long: 'kill-after signal', skip: 1 }),
  time: wrapper({ short: 'fo', long: 'format output', effects: { '-o': 'write', '--output': 'write' } }),
  setsid: wrapper({}),
  stdbuf: wrapper({ short: 'ioe', long: 'input output error' }),
  ionice: wrapper({ short: 'cnpPu', long: 'class classdata pid' }),
  chrt: wrapper({ short: 'TPDp', skip: 1 }),
  taskset: wrapper({ short: 'p', skip: 1 }),
  numactl: wrapper({ short: 'NmCip', long: 'cpunodebind membind physcpubind interleave' }),
  prlimit: wrapper({ short: 'p', long: 'pid' }),
  setarch: wrapper({ skip: 1 }),
  ...names(
    'linux32 linux64 i386 x86_64 arch-chroot eatmydata unbuffer rlwrap catchsegv faketime dbus-run-session dbus-launch torsocks torify proxychains proxychains4 tsocks caffeinate winpty cgexec systemd-inhibit firejail wine box64 fakeroot fakechroot noglob sem chronic ts pee sponge ifne errno aa-exec choom uftrace valgrind rr ltrace64 qemu-user pk setpriv cpulimit trickle sg newgrp',
    wrapper({ short: 'pgGceoxw', effects: {} }),
  ),
  perf: wrapper({ after: ['stat', 'record', 'trace'], short: 'eopCr', effects: { '-o': 'write' } }),
  'xvfb-run': wrapper({ short: 'efnpsw', long: 'server-args server-num' }),
  capsh: (call) => {
    call.node.findings.push(denied('privilege/capsh', 'changes capabilities'))
    const at = call.args.indexOf('-c')
    if (at !== -1) runText(call, call.args[at + 1] ?? '')
    return UNKNOWN
  },
  sudo: wrapper({
    short: 'ugCcDhpRrtTU',
    long: 'user group host prompt chdir chroot close-from role type',
    assigns: true,
    deny: 'runs with more rights',
  }),
  doas: wrapper({ short: 'uC', deny: 'runs with more rights' }),
  pkexec: wrapper({ long: 'user', deny: 'runs with more rights' }),
  run0: wrapper({ short: 'ugD', long: 'user group', deny: 'runs with more rights' }),
  gksudo: wrapper({ short: 'u', deny: 'runs with more rights' }),
  please: wrapper({ deny: 'runs with more rights' }),
  chroot: wrapper({ long: 'userspec groups', skip: 1, deny: 'changes the root directory' }),
  unshare: wrapper({
    short: 'SGRw',
    long: 'setuid setgid root wd map-user map-group',
    deny: 'makes namespaces of its own',
  }),
  nsenter: wrapper({
    short: 'tSGrw',
    long: 'target setuid setgid root wd',
    deny: 'enters namespaces of another process',
  }),
  bwrap: wrapper({ deny: 'makes a sandbox of its own' }),
  'systemd-run': wrapper({
    short: 'puMHtE',
    long: 'unit property slice uid gid setenv working-directory on-calendar',
    deny: 'starts a service outside this session',
  }),
  'systemd-nspawn': wrapper({ short: 'DMu', deny: 'starts a container of its own' }),
  runc: wrapper({ deny: 'starts containers directly' }),
  crun: wrapper({ deny: 'starts containers directly' }),
  runsc: wrapper({ deny: 'starts containers directly' }),
  proot: wrapper({ short: 'rbwRS', ask: 'changes what paths mean' }),
  direnv,
  bundle: wrapper({ after: ['exec'] }),
  poetry: wrapper({ after: ['run'] }),
  pipenv: wrapper({ after: ['run'] }),
  hatch: wrapper({ after: ['run'] }),
  pdm: wrapper({ after: ['run'] }),
  rye: wrapper({ after: ['run'] }),
  pixi: wrapper({ after: ['run'] }),
  conda: wrapper({ after: ['run'], short: 'np', long: 'name prefix' }),
  mamba: wrapper({ after: ['run'], short: 'np', long: 'name prefix' }),
  mise: wrapper({ after: ['exec', 'x'], short: 'C' }),
  asdf: wrapper({ after: ['exec'] }),
  rbenv: wrapper({ after: ['exec'] }),
  pyenv: wrapper({ after: ['exec'] }),
  nodenv: wrapper({ after: ['exec'] }),
  rustup: wrapper({ after: ['run'], skip: 1 }),
  nix: wrapper({ after: ['run', 'shell', 'develop'], short: 'c', long: 'command' }),
  'nix-shell': (call) => {
    const at = call.args.findIndex((arg) => arg === '--run' || arg === '--command')
    if (at !== -1) runText(call, call.args[at + 1] ?? '')
    return UNKNOWN
  },
  dotenv: wrapper({ short: 'ecv' }),
  'env-cmd': wrapper({ short: 'fe' }),
  'cross-env': wrapper({ assigns: true }),
  'cross-env-shell': wrapper({ assigns: true, line: true }),
  doppler: wrapper({ after: ['run'], short: 'pc', ask: 'hands secrets to a command' }),
  'aws-vault': wrapper({ after: ['exec'], skip: 1, ask: 'hands secrets to a command' }),
  chamber: wrapper({ after: ['exec'], skip: 1, ask: 'hands secrets to a command' }),
  expect: (call) => {
    const at = call.args.findIndex((arg) => /^-\w*c$/.test(arg))
    call.node.findings.push(dynamic('drives other programs'))
    const code = at === -1 ? call.stdin.text : (call.args[at + 1] ?? '')
    for (const match of code.matchAll(/(?:spawn|exec|system)\s+([^;\n}]+)/g))
      runText(call, match[1] as string)
    return UNKNOWN
  },
}
