import { addressFindings } from '../address.ts'
import { applyOption, runText, touch } from '../effects.ts'
import { asked, boxed, refused, unseen } from '../finding.ts'
import { type OptionSpec, parseOptions } from '../options.ts'
import { runFile } from '../run-file.ts'
import { UNKNOWN } from '../shell/scope.ts'
import { isOpen, isStatic } from '../shell/unknown-text.ts'
import { type Call, deeper, type Handler } from '../walk.ts'

const OFFICIAL =
  /^https?:\/\/(registry\.npmjs\.org|registry\.yarnpkg\.com|pypi\.org|files\.pythonhosted\.org|npm\.pkg\.github\.com|index\.crates\.io|proxy\.golang\.org|rubygems\.org|jsr\.io|npm\.jsr\.io|download\.pytorch\.org)(\/|$)/
const FOREIGN_SOURCE =
  /^(git\+|git:|git@|https?:|ssh:|svn\+|hg\+|file:|github:|gitlab:|bitbucket:|gist:)|\.git(#|$)|\.(tgz|tar\.gz|zip|whl)$/

/** A package from outside the registry runs its own code during installation. */
function judgeSources(call: Call, operands: readonly string[]): void {
  for (const operand of operands) {
    // `.[dev]` is a glob to the shell, and stays as it is where no file fits.
    if (isOpen(operand))
      call.node.findings.push(
        asked('packages/dynamic', 'installs a package whose name is known only at run time'),
      )
    else if (FOREIGN_SOURCE.test(operand))
      call.node.findings.push(asked('packages/source', `installs code from \`${operand.slice(0, 60)}\``))
    else if (/^[~/]/.test(operand)) touch(call, operand, 'read')
  }
}

function judgeRegistry(call: Call, value: string | undefined): void {
  if (value === undefined || OFFICIAL.test(value)) return
  call.node.findings.push(
    asked('packages/registry', `takes packages from \`${value.slice(0, 60)}\``),
    ...addressFindings(call.walk, call.scope, value),
  )
}

const NPM: OptionSpec = {
  short: 'wCcp',
  long: 'workspace prefix registry call package userconfig globalconfig script-shell cache tag access otp depth filter dir node-options loglevel reporter',
  effects: {
    '--script-shell': 'program',
    '--userconfig': 'ask: other settings, which can start programs',
    '--globalconfig': 'ask: other settings, which can start programs',
    '--prefix': 'write',
    '-C': 'read',
    '--dir': 'read',
    '--node-options': 'ask: makes node load other code',
    '-g': 'ask: installs for the whole user',
    '--global': 'ask: installs for the whole user',
    '--location': 'data',
  },
}
const NPM_PREFIX: OptionSpec = { ...NPM, prefix: true }
const NPM_EXEC = new Set(['exec', 'x', 'dlx'])
const NPM_RUN = new Set(['run', 'run-script', 'test', 'start', 'stop', 'restart', 't', 'tst'])

/** npm, pnpm, yarn, bun. */
const npm: Handler = (call) => {
  const dashes = call.args.indexOf('--')
  const own = dashes === -1 ? call.args : call.args.slice(0, dashes)
  const first = parseOptions(NPM_PREFIX, own)
  const [sub, ...rest] = first.operands
  if (sub === undefined) return undefined
  call.node.canonical = [call.name, sub, ...rest]
  const parsed = parseOptions(NPM_EXEC.has(sub) ? NPM_PREFIX : NPM, rest)
  for (const option of [...first.options, ...parsed.options]) {
    applyOption(call, option)
    if (option.name === '--registry') judgeRegistry(call, option.value)
  }
  if (NPM_EXEC.has(sub))
    return npmExec(call, { ...parsed, after: dashes === -1 ? [] : call.args.slice(dashes + 1) })
  judgeNpm(call, sub, parsed.operands)
  return UNKNOWN
}

type Exec = {
  readonly options: readonly { readonly name: string; readonly value: string | undefined }[]
  readonly operands: readonly string[]
  readonly after: readonly string[]
}

function npmExec(call: Call, { options, operands, after }: Exec) {
  call.node.findings.push(boxed('packages/exec', 'runs a program of a package'))
  const line = options.find(({ name }) => name === '-c' || name === '--call')?.value
  if (line !== undefined) runText(call, line)
  return launch(call, [...operands, ...after])
}

/** A package's program by name; the name may also be any other program. */
function launch(call: Call, argv: readonly string[]) {
  const [name = '', ...args] = argv
  if (name === '') return UNKNOWN
  judgeSources(call, [name])
  const bare = name.replace(/(?<=.)@[^@/]*$/, '')
  return deeper(call.walk, () =>
    call.walk.run(
      call.scope,
      [bare.includes('/') ? bare.slice(bare.lastIndexOf('/') + 1) : bare, ...args],
      call.stdin,
    ),
  )
}

function judgeNpm(call: Call, sub: string, operands: readonly string[]): void {
  if (/^(i|install|add|ci|update|up|upgrade|create|init|link)$/.test(sub)) judgeSources(call, operands)
  if (sub === 'publish' || sub === 'unpublish' || sub === 'deprecate')
    call.node.findings.push(asked('packages/publish', 'publishes or withdraws a package'))
  if (/^(token|login|adduser|whoami|access|owner|team|org|profile|logout)$/.test(sub))
    call.node.findings.push(asked('packages/account', 'uses the registry account'))
  if ((sub === 'config' || sub === 'c') && /^(set|delete|edit)$/.test(operands[0] ?? ''))
    call.node.findings.push(refused('packages/settings', 'changes persistent settings'))
  if (sub === 'set') call.node.findings.push(refused('packages/settings', 'changes persistent settings'))
  if (sub === 'pkg' && operands[0] === 'set') judgePkgSet(call, operands.slice(1))
  if (NPM_RUN.has(sub) && operands.some((operand) => !isStatic(operand)))
    call.node.findings.push(boxed('packages/run', 'runs a script that is known only when it runs'))
  if (sub === 'exec-script' || sub === 'explore')
    call.node.findings.push(asked('packages/shell', 'starts a shell'))
}

function judgePkgSet(call: Call, settings: readonly string[]): void {
  for (const setting of settings)
    if (/^(scripts|bin|config|publishConfig)\b/.test(setting))
      call.node.findings.push(asked('persistence/scripts', 'changes scripts that run later'))
}

const NPX: OptionSpec = {
  short: 'cp',
  long: 'call package registry shell script-shell node-options userconfig',
  prefix: true,
  effects: { '--script-shell': 'program', '--shell': 'program' },
}

const npx: Handler = (call) => {
  const { options, operands } = parseOptions(NPX, call.args)
  for (const option of options) {
    applyOption(call, option)
    if (option.name === '--registry') judgeRegistry(call, option.value)
    if (option.name === '-p' || option.name === '--package') judgeSources(call, [option.value ?? ''])
  }
  return npmExec(call, { options, operands, after: [] })
}

const PIP: OptionSpec = {
  short: 'ceirftbdp',
  long: 'constraint editable index-url extra-index-url requirement find-links target python prefix root src proxy trusted-host config-settings global-option build-option install-option cert client-cert cache-dir log timeout retries',
  effects: {
    '-r': 'read',
    '--requirement': 'read',
    '-c': 'read',
    '--constraint': 'read',
    '-t': 'write',
    '--target': 'write',
    '--log': 'write',
    '--user': 'ask: installs for the whole user',
    '--system': 'ask: installs for the whole system',
    '--break-system-packages': 'ask: installs for the whole system',
    '--trusted-host': 'ask: skips certificate checks',
    '--proxy': 'ask: sends traffic through another host',
  },
}

/** pip, uv, poetry add, pipx. */
const pip: Handler = (call) => {
  const start = call.name === 'uv' && call.args[0] === 'pip' ? 1 : 0
  const [sub, ...rest] = call.args.slice(start)
  if (call.name === 'uv' && (sub === 'run' || (sub === 'tool' && rest[0] === 'run')))
    return uvRun(call, sub === 'run' ? rest : rest.slice(1))
  if (call.name === 'uvx' || (call.name === 'pipx' && sub === 'run'))
    return uvRun(call, call.name === 'uvx' ? call.args : rest)
  const { options, operands } = parseOptions(PIP, rest)
  for (const option of options) {
    applyOption(call, option)
    if (/^(-i|--index-url|--extra-index-url|--default-index|--index|-f|--find-links)$/.test(option.name))
      judgeRegistry(call, option.value)
    if (option.name === '-e' || option.name === '--editable') judgeSources(call, [option.value ?? ''])
  }
  if (/^(install|download|wheel|add|sync|inject)$/.test(sub ?? '')) judgeSources(call, operands)
  if (sub === 'config' && operands[0] === 'set')
    call.node.findings.push(refused('packages/settings', 'changes persistent settings'))
  if (sub === 'publish' || sub === 'upload')
    call.node.findings.push(asked('packages/publish', 'publishes a package'))
  return UNKNOWN
}

const UV_RUN: OptionSpec = {
  short: 'ppm',
  long: 'python with with-requirements extra group package directory project from spec env-file',
  prefix: true,
}

function uvRun(call: Call, args: readonly string[]) {
  const { options, operands } = parseOptions(UV_RUN, args)
  call.node.findings.push(boxed('packages/exec', 'runs a program of a package'))
  const sources = options.filter(({ name }) => /^--(from|with|spec)$/.test(name))
  judgeSources(
    call,
    sources.map(({ value }) => value ?? ''),
  )
  return launch(call, operands)
}

const MAKE: OptionSpec = {
  short: 'CfIjloWE',
  long: 'directory file makefile include-dir jobs load-average old-file what-if new-file eval',
  effects: { '-C': 'read', '--directory': 'read', '--eval': 'code' },
}

const make: Handler = (call) => {
  const { options, operands } = parseOptions(MAKE, call.args)
  for (const option of options) {
    if (option.name === '--eval' || option.name === '-E')
      call.node.findings.push(unseen('build/make-eval', 'gives make other rules'))
    if (/^(-f|--file|--makefile)$/.test(option.name)) judgeMakefile(call, option.value ?? '')
    applyOption(call, option)
  }
  for (const operand of operands) {
    const match = /^(\.?[A-Z_]\w*)[:+?]*=(.*)$/is.exec(operand)
    if (
      !match ||
      !/^(\.?SHELL(FLAGS)?|MAKE|CC|CXX|AR|LD|RM|INSTALL|MAKEFLAGS|PATH)$/.test(match[1] as string)
    )
      continue
    call.node.findings.push(unseen('build/make-program', `\`${match[1]}\` names a program that make starts`))
    if (!/^(gcc|clang|g\+\+|clang\+\+|cc|c\+\+|\/bin\/(ba)?sh)(-\d+)?$/.test(match[2] as string))
      runText(call, match[2] as string)
  }
  return UNKNOWN
}

function judgeMakefile(call: Call, file: string): void {
  const made = call.scope.files.get(file)
  if (file === '-' || made || file.startsWith('/dev/')) {
    call.node.findings.push(unseen('build/makefile', 'takes its rules from a stream'))
    const text = made?.kind === 'content' ? made.stream.text : call.stdin.text
    for (const recipe of text.matchAll(/^\t(.*)$/gm))
      runText(call, (recipe[1] as string).replace(/^[@+-]+/, ''))
  } else runFile(call, file, 'make')
}

const CARGO: OptionSpec = {
  short: 'pjFZ',
  long: 'package jobs features target manifest-path git branch tag rev registry index path root config color profile bin example test',
  effects: { '--config': 'ask: settings that can start programs' },
}

const cargo: Handler = (call) => {
  const words = call.args[0]?.startsWith('+') ? call.args.slice(1) : call.args
  const { options, operands } = parseOptions(CARGO, words)
  for (const option of options) applyOption(call, option)
  call.node.canonical = ['cargo', ...operands]
  if (options.some(({ name }) => name === '--git' || name === '--index'))
    call.node.findings.push(asked('packages/source', 'installs code from an arbitrary repository'))
  if (/^(publish|yank|login|owner)$/.test(operands[0] ?? ''))
    call.node.findings.push(asked('packages/publish', 'publishes a package'))
  return UNKNOWN
}

const go: Handler = (call) => {
  const [sub, ...rest] = call.args
  const exec = rest.findIndex((arg) => /^-{1,2}(exec|toolexec|vettool)(=|$)/.test(arg))
  if (exec !== -1) {
    call.node.findings.push(unseen('build/go-exec', 'makes go start another program'))
    runText(call, /=(.*)$/s.exec(rest[exec] as string)?.[1] ?? rest[exec + 1] ?? '')
  }
  const remote = rest.find((arg) => /^[\w-]+(\.[\w-]+)+\/.+@/.test(arg))
  if (remote !== undefined && /^(run|install|get)$/.test(sub ?? ''))
    call.node.findings.push(asked('packages/source', `runs or installs code from \`${remote}\``))
  if (sub === 'env' && rest.some((arg) => arg === '-w'))
    call.node.findings.push(asked('packages/settings', 'changes persistent settings'))
  if (sub === 'generate') call.node.findings.push(boxed('build/generate', 'runs commands from source files'))
  return UNKNOWN
}

/** Package managers and build tools: workspace code runs in a sandbox; code from elsewhere needs approval. */
export const PACKAGES: Readonly<Record<string, Handler>> = {
  npm,
  pnpm: npm,
  yarn: npm,
  bun: npm,
  npx,
  pnpx: npx,
  bunx: npx,
  pip,
  uv: pip,
  uvx: pip,
  pipx: pip,
  make,
  gmake: make,
  cargo,
  go,
  gem: (call) => {
    if (call.args.some((arg) => /^(--source|-s|-ghttps?)/.test(arg)))
      call.node.findings.push(asked('packages/registry', 'uses another package source'))
    if (call.args[0] === 'push') call.node.findings.push(asked('packages/publish', 'publishes a package'))
    return UNKNOWN
  },
  cmake: (call) => {
    const { options } = parseOptions(
      { short: 'SBDGTACUP', effects: { '-B': 'write', '-S': 'read' } },
      call.args,
    )
    for (const option of options) {
      applyOption(call, option)
      if (option.name === '-P' || option.name === '-C') runFile(call, option.value ?? '', 'cmake')
    }
    call.node.findings.push(boxed('build/cmake', 'runs build code'))
    const at = call.args.indexOf('-E')
    if (at !== -1)
      runText(
        call,
        call.args
          .slice(at + 1)
          .filter((arg) => arg !== 'env' && arg !== 'time')
          .join(' '),
      )
    return UNKNOWN
  },
}
