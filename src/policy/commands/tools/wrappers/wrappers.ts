import { applyOption, runText, touch } from '../../effects.ts'
import { asked, boxed, denied, dynamic, unseen } from '../../finding.ts'
import { parseOptions } from '../../options.ts'
import { fork, UNKNOWN } from '../../shell/scope.ts'
import { isStatic } from '../../shell/unknown-text.ts'
import { deeper, type Handler } from '../../walk.ts'
import { names } from '../tool.ts'
import { runInner, runWithAssignments, wrapper } from './wrapper.ts'

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

const direnvExec = wrapper({ after: ['exec'], skip: 1 })

const direnv: Handler = (call) => {
  if (/^(allow|permit|grant|edit)$/.test(call.args[0] ?? ''))
    call.node.findings.push(asked('protect/soft', 'lets a file run whenever a shell enters the directory'))
  return direnvExec(call)
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

/** `busybox rm …`: the applet is the program. */
const multicall: Handler = (call) => {
  const rest = call.args[0]?.startsWith('--') ? call.args.slice(1) : call.args
  // Its applets have options of their own.
  call.node.findings.push(boxed('wrappers/multicall', 'runs one of its own programs'))
  if (call.args[0] === '--install') for (const path of rest) if (path[0] !== '-') touch(call, path, 'write')
  if (rest.length === 0 || call.args[0] === '--install') return undefined
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

/** Terminal multiplexers: any operand with a space is a shell line. */
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
    call.node.findings.push(denied('escape/trace', 'traces another process'))
  if (options.some(({ name, value }) => name === '-o' && /^[|!]/.test(value ?? '')))
    call.node.findings.push(unseen('wrappers/strace', 'pipes into a command'))
  call.node.findings.push(boxed('wrappers/trace', 'runs under a tracer'))
  return runInner(call, operands, false)
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

/** Programs that start other programs. The inner command is judged as if it stood alone, at any depth. */
export const WRAPPERS: Readonly<Record<string, Handler>> = {
  env,
  flock,
  script,
  watch,
  'start-stop-daemon': daemon,
  'ld.so': loader,
  ...names('busybox toybox', multicall),
  ...names('tmux screen zellij', multiplexer),
  ...names('at batch atq', later),
  ...names('strace ltrace dtruss', strace),
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
  direnv,
  bundle: (call) => {
    if (call.args[0] === 'config' && call.args.includes('--global'))
      call.node.findings.push(asked('packages/settings', 'changes every project of this user'))
    return wrapper({ after: ['exec'] })(call)
  },
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
  doppler: wrapper({ after: ['run'], short: 'pc', ask: 'passes secrets to a command' }),
  'aws-vault': wrapper({ after: ['exec'], skip: 1, ask: 'passes secrets to a command' }),
  chamber: wrapper({ after: ['exec'], skip: 1, ask: 'passes secrets to a command' }),
  expect: (call) => {
    const at = call.args.findIndex((arg) => /^-\w*c$/.test(arg))
    call.node.findings.push(dynamic('drives other programs'))
    const code = at === -1 ? call.stdin.text : (call.args[at + 1] ?? '')
    for (const match of code.matchAll(/(?:spawn|exec|system)\s+([^;\n}]+)/g))
      runText(call, match[1] as string)
    return UNKNOWN
  },
}
