import { addressFindings } from '../../address.ts'
import { applyOption, applyValue, runText, touch } from '../../effects.ts'
import { asked, boxed, denied, type Finding, refused, unseen } from '../../finding.ts'
import { type Option, type OptionSpec, parseOptions } from '../../options.ts'
import { isOpen, isStatic, show } from '../../shell/unknown-text.ts'
import type { Call, Handler } from '../../walk.ts'
import { judgeContents, judgeRepository } from './git-repository.ts'

const GLOBAL: OptionSpec = {
  short: 'Cc',
  long: 'git-dir work-tree namespace exec-path super-prefix config-env list-cmds attr-source',
  prefix: true,
}

/** Settings that name neither a program nor a path; any other setting on the command line needs approval. */
const SAFE_SETTING =
  /^(user\.(name|email)|color\.\w+|advice\.\w+|core\.(quotepath|autocrlf|safecrlf|abbrev|filemode|ignorecase|longpaths|precomposeunicode|eol|whitespace|commentchar|bigfilethreshold|symlinks)|log\.\w+|init\.defaultbranch|commit\.(gpgsign|verbose|cleanup)|tag\.(gpgsign|sort)|gc\.auto|pull\.(rebase|ff)|push\.(default|autosetupremote)|diff\.(renames|renamelimit|algorithm|noprefix|mnemonicprefix|context)|merge\.(conflictstyle|ff|renames)|rebase\.(autosquash|autostash)|status\.\w+|branch\.sort|column\.\w+|format\.pretty|fetch\.(prune|parallel)|safe\.directory|rerere\.enabled|index\.\w+|feature\.\w+|pack\.\w+|versionsort\.\w+|blame\.\w+|grep\.(linenumber|patterntype))$/i
const PLAIN_VALUE = /^(false|true|cat|less|never|no|0|1)?$/

function judgeSetting(call: Call, text: string): void {
  const at = text.indexOf('=')
  const key = at === -1 ? text : text.slice(0, at)
  const value = at === -1 ? 'true' : text.slice(at + 1)
  if (!isStatic(key))
    call.node.findings.push(unseen('git/setting', 'a git setting that is known only when it runs'))
  else if (SAFE_SETTING.test(key) && isStatic(value)) return
  else if (/pager|editor/i.test(key) && PLAIN_VALUE.test(value)) return
  else {
    call.node.findings.push(unseen('git/setting', `the git setting \`${show(key)}\` can start programs`))
    if (isStatic(value) && !PLAIN_VALUE.test(value)) runText(call, value.replace(/^!/, ''))
  }
}

function judgeGlobal(call: Call, { name, value = '' }: Option): void {
  if (name === '-c') judgeSetting(call, value)
  else if (name === '-C') touch(call, value, 'read')
  else if (name === '--exec-path' && value !== '')
    call.node.findings.push(unseen('git/exec-path', 'makes git run programs from another directory'))
  else if (name === '--config-env' || name === '--attr-source')
    call.node.findings.push(unseen('git/setting', 'a git setting from elsewhere'))
  else if ((name === '--git-dir' || name === '--work-tree') && !/^(\.|\.\/)?(\.git\/?)?$/.test(value)) {
    call.node.findings.push(
      unseen('git/repository', 'uses another repository, whose settings can start programs'),
    )
    touch(call, value, 'read')
  }
}

const RUNS = 'shell'

/** Options that matter in every sub-command; `short` lists those that take a value. */
const ANY_OPTIONS: OptionSpec = {
  short: 'mFCcSGLOUlnBMu',
  long: 'message author date grep since until after before format pretty max-count skip branch depth origin reference pathspec-from-file stat-width unified inter-hunk-context word-diff-regex strategy strategy-option onto cleanup color',
  effects: {
    '--output': 'write',
    '--ext-diff': 'ask: lets settings start a diff program',
    '--textconv': 'ask: lets settings start a program',
    '--upload-pack': RUNS,
    '--receive-pack': RUNS,
    '--exec': RUNS,
    '--extcmd': RUNS,
    '--open-files-in-pager': RUNS,
    '--tree-filter': RUNS,
    '--index-filter': RUNS,
    '--msg-filter': RUNS,
    '--env-filter': RUNS,
    '--commit-filter': RUNS,
    '--parent-filter': RUNS,
    '--tag-name-filter': RUNS,
    '--setup': RUNS,
    '--contents': 'read',
    '--template': 'data',
    '--file': 'read',
    '--config': 'data',
    '--blob': 'data',
    '--smtp-server': 'ask: sends mail',
    '--to-cmd': RUNS,
    '--cc-cmd': RUNS,
    '--web-browser': RUNS,
    '--browser': RUNS,
    '--tool': 'data',
    '--separate-git-dir': 'write',
    '--output-directory': 'write',
    '--gpg-sign': 'box: signs',
    '--no-index': 'box: compares any two files',
    '--filters': 'box: lets settings start a program',
    '--show-signature': 'box: starts a program named in settings',
    '--exclude-from': 'read',
    '--ignore-revs-file': 'read',
  },
}

/** Short options that name a program in certain sub-commands. */
const SHORT_PROGRAMS: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  difftool: { '-x': RUNS },
  rebase: { '-x': RUNS },
  grep: { '-O': RUNS },
  clone: { '-u': RUNS },
  archive: { '-o': 'write' },
  'format-patch': { '-o': 'write' },
  commit: { '-F': 'read', '-t': 'read' },
  config: { '-f': 'read' },
  fsck: { '--lost-found': 'box: writes what it found' },
  blame: { '-S': 'read' },
  'ls-files': { '-X': 'read' },
}

const SUB_OPTIONS: ReadonlyMap<string, OptionSpec> = new Map(
  Object.entries(SHORT_PROGRAMS).map(([sub, effects]) => [
    sub,
    { ...ANY_OPTIONS, effects: { ...ANY_OPTIONS.effects, ...effects } },
  ]),
)

const git: Handler = (call) => {
  const { options, operands } = parseOptions(GLOBAL, call.args)
  for (const option of options) judgeGlobal(call, option)
  const [sub, ...args] = operands
  if (sub === undefined) return undefined
  judgeRepository(call, options)
  call.node.canonical = ['git', sub, ...args]
  if (isOpen(sub))
    call.node.findings.push(unseen('git/dynamic', 'a git command that is known only when it runs'))
  const parsed = parseOptions(SUB_OPTIONS.get(sub) ?? ANY_OPTIONS, args)
  for (const option of parsed.options) {
    if (option.effect === RUNS) runsProgram(call, option)
    else if (option.name === '--config') judgeSetting(call, option.value ?? '')
    else if (option.name === '--template')
      call.node.findings.push(asked('git/template', 'installs hooks from a template'))
    else applyOption(call, option)
  }
  if (args.some((arg) => /%G[?GSKFPT]/.test(arg)))
    call.node.findings.push(boxed('git/program', 'starts a program named in settings'))
  judgeContents(call, sub, args)
  if (Object.hasOwn(SUBCOMMANDS, sub))
    SUBCOMMANDS[sub]?.(call, { args, operands: parsed.operands, options: parsed.options })
  return undefined
}

function runsProgram(call: Call, option: Option): void {
  call.node.findings.push(unseen('git/program', `\`${option.name}\` starts a program`))
  if (option.value !== undefined && option.value !== '') runText(call, option.value)
}

type Sub = {
  readonly args: readonly string[]
  readonly operands: readonly string[]
  readonly options: readonly Option[]
}
type SubHandler = (call: Call, sub: Sub) => void

const has = (options: readonly Option[], ...names: readonly string[]): boolean =>
  options.some(({ name }) => names.includes(name))

const note =
  (finding: Finding) =>
  (call: Call): void => {
    call.node.findings.push(finding)
  }

const isAddress = (text: string): boolean =>
  /^[a-z][a-z0-9+.-]*:/i.test(text) || /^[\w.-]+@[\w.-]+:/.test(text) || text.startsWith('ext::')

function judgeRemote(call: Call, text: string | undefined): void {
  if (text === undefined) return
  if (/^[\w-]+::/.test(text)) {
    call.node.findings.push(
      denied('git/transport', `\`${show(text).slice(0, 40)}\` is a transport that runs a command`),
    )
    runText(call, text.replace(/^[\w-]+::/, '').replace(/%(.)/g, '$1'))
  } else if (isAddress(text))
    call.node.findings.push(
      ...addressFindings(call.walk, call.scope, text.replace(/^[\w.-]+@([\w.-]+):.*/, '$1')),
    )
  else if (/^[/~.]/.test(text)) touch(call, text, 'read')
}

const network: SubHandler = (call, { operands }) => {
  call.node.findings.push(asked('git/network', 'connects to another machine'))
  judgeRemote(call, operands[0])
}

const push: SubHandler = (call, { operands }) => {
  call.node.findings.push(asked('git/push', 'publishes work'))
  judgeRemote(call, operands[0])
  if (operands[0] !== undefined && (isAddress(operands[0]) || isOpen(operands[0])))
    call.node.findings.push(
      refused('exfiltration/push', 'publishes to an address instead of a remote of this repository'),
    )
}

const config: SubHandler = (call, { operands, options }) => {
  const reads =
    has(options, '--get', '--get-all', '--get-regexp', '--list', '-l', '--get-urlmatch') ||
    /^(get|list)$/.test(operands[0] ?? '')
  if (reads) return
  if (
    has(
      options,
      '--unset',
      '--unset-all',
      '--add',
      '--replace-all',
      '-e',
      '--edit',
      '--remove-section',
      '--rename-section',
    )
  )
    call.node.findings.push(boxed('git/setting', 'changes a setting of the repository'))
  if (operands.length < 2) return
  if (has(options, '--global', '--system'))
    call.node.findings.push(refused('git/global-setting', 'changes git for every repository of this user'))
  const [key, value] = operands[0] === 'set' ? operands.slice(1) : operands
  if (SAFE_SETTING.test(key ?? ''))
    call.node.findings.push(boxed('git/setting', 'changes a setting of the repository'))
  else judgeSetting(call, `${key}=${value ?? ''}`)
}

const inner =
  (start: number): SubHandler =>
  (call, { operands }) => {
    const command = operands.slice(start)
    if (command.length === 0) return
    call.node.findings.push(unseen('git/run', 'git starts a command'))
    runText(call, command.join(' '))
  }

/** With one of these options, `git branch` only lists. */
const BRANCH_LISTS = [
  ...['-a', '--all', '-r', '--remotes', '-l', '--list', '-v', '-vv', '--show-current', '--sort', '--format'],
  ...['--contains', '--no-contains', '--merged', '--no-merged', '--points-at', '--column'],
]

const SUBCOMMANDS: Readonly<Record<string, SubHandler>> = {
  push,
  'send-pack': push,
  fetch: network,
  pull: network,
  clone: network,
  'ls-remote': network,
  'fetch-pack': network,
  'remote-http': network,
  submodule: (call, sub) => {
    if (sub.operands[0] === 'foreach') inner(1)(call, sub)
    else if (!/^(status|summary)?$/.test(sub.operands[0] ?? ''))
      network(call, { ...sub, operands: sub.operands.slice(1) })
  },
  bisect: (call, sub) => {
    if (sub.operands[0] === 'run') inner(1)(call, sub)
  },
  config,
  remote: (call, { operands }) => {
    if (/^(add|set-url|rename)$/.test(operands[0] ?? '')) {
      call.node.findings.push(asked('git/remote', 'changes where work is published'))
      judgeRemote(call, operands[2])
    }
    if (/^(remove|rm|set-\w+)$/.test(operands[0] ?? ''))
      call.node.findings.push(boxed('git/remote', 'changes remotes'))
    if (/^(update|prune|show)$/.test(operands[0] ?? ''))
      call.node.findings.push(asked('git/network', 'connects to another machine'))
  },
  clean: (call, { options }) => {
    const dry = has(options, '-n', '--dry-run')
    if (!dry) call.node.findings.push(asked('git/clean', 'deletes untracked files'))
  },
  branch: (call, { options, operands }) => {
    // `-d` keeps a branch whose work is nowhere else.
    if (has(options, '-D', '-M', '-f', '--force'))
      call.node.findings.push(asked('git/branch', 'deletes or moves a branch'))
    else if (
      has(
        options,
        '-d',
        '--delete',
        '-m',
        '-c',
        '-C',
        '-u',
        '--set-upstream-to',
        '--unset-upstream',
        '--edit-description',
      ) ||
      (operands.length > 0 && !has(options, ...BRANCH_LISTS))
    )
      call.node.findings.push(boxed('git/branch', 'changes branches'))
  },
  tag: (call, { options, operands }) => {
    if (has(options, '-d', '--delete', '-f', '--force'))
      call.node.findings.push(asked('git/tag', 'deletes or moves a tag'))
    else if (operands.length > 0 && !has(options, '-l', '--list', '-n', '--contains', '--points-at'))
      call.node.findings.push(boxed('git/tag', 'makes a tag'))
  },
  stash: (call, { operands }) => {
    if (/^(drop|clear)$/.test(operands[0] ?? ''))
      call.node.findings.push(asked('git/stash', 'discards stashed work'))
    else if (!/^(list|show)$/.test(operands[0] ?? ''))
      call.node.findings.push(boxed('git/stash', 'stashes work'))
  },
  reset: (call, { options }) => {
    if (has(options, '--hard')) call.node.findings.push(asked('git/reset', 'discards uncommitted work'))
  },
  reflog: (call, { operands }) => {
    if (/^(expire|delete)$/.test(operands[0] ?? ''))
      call.node.findings.push(asked('git/reflog', 'discards history'))
  },
  worktree: (call, { operands }) => {
    if (operands[0] !== 'list') call.node.findings.push(boxed('git/worktree', 'changes work trees'))
    for (const path of operands.slice(1, 2)) if (operands[0] === 'add') touch(call, path, 'write')
  },
  'symbolic-ref': (call, { operands }) => {
    if (operands.length > 1) call.node.findings.push(boxed('git/ref', 'changes a reference'))
  },
  notes: note(boxed('git/notes', 'changes notes')),
  gc: (call, { args }) => {
    if (args.some((arg) => arg.startsWith('--prune')))
      call.node.findings.push(asked('git/gc', 'discards history'))
  },
  'verify-commit': note(boxed('git/program', 'starts a program named in settings')),
  'verify-tag': note(boxed('git/program', 'starts a program named in settings')),
  mergetool: note(asked('git/program', 'starts a program named in settings')),
  maintenance: (call, { operands }) => {
    if (/^(start|register|stop|unregister)$/.test(operands[0] ?? ''))
      call.node.findings.push(asked('persistence/schedule', 'runs commands later, outside this session'))
  },
  svn: network,
  p4: network,
  cvsimport: network,
  cvsserver: note(denied('network/offer', 'serves the repository on the network')),
  help: (call, { options }) => {
    if (has(options, '-w', '--web', '-i', '--info'))
      call.node.findings.push(boxed('git/program', 'starts a program named in settings'))
  },
  'update-ref': note(asked('git/ref', 'changes references directly')),
  'filter-branch': note(asked('git/rewrite', 'rewrites history')),
  'filter-repo': note(asked('git/rewrite', 'rewrites history')),
  credential: note(denied('secrets/git', 'prints stored credentials')),
  'credential-store': note(denied('secrets/git', 'prints stored credentials')),
  'credential-cache': note(denied('secrets/git', 'prints stored credentials')),
  daemon: note(denied('network/offer', 'serves the repository on the network')),
  instaweb: note(denied('network/offer', 'serves the repository on the network')),
  'http-backend': note(denied('network/offer', 'serves the repository on the network')),
  'send-email': note(asked('git/mail', 'sends mail')),
  'imap-send': note(asked('git/mail', 'sends mail')),
  archive: (call, { options }) => {
    if (has(options, '--remote')) call.node.findings.push(asked('git/network', 'connects to another machine'))
  },
  init: (call, { operands }) => {
    call.node.findings.push(boxed('git/init', 'makes a repository'))
    if (operands[0] !== undefined) touch(call, operands[0], 'write')
  },
  diff: (call, { options, operands }) => {
    if (has(options, '--no-index')) for (const path of operands) touch(call, path, 'read')
  },
  'hash-object': (call, { operands }) => {
    for (const path of operands) touch(call, path, 'read')
  },
  apply: (call, { operands, options }) => {
    if (has(options, '--unsafe-paths'))
      call.node.findings.push(asked('git/apply', 'writes outside the work tree'))
    for (const path of operands) touch(call, path, 'read')
  },
  mv: (call, { operands }) => {
    for (const path of operands) applyValue(call, 'write', path)
  },
  rm: (call, { operands }) => {
    for (const path of operands) applyValue(call, 'delete', path)
  },
  // Both add files to the work tree without a commit.
  'update-index': (call, { args, operands }) => {
    for (const path of [...operands, ...args.flatMap((arg) => arg.split(',').slice(2))])
      applyValue(call, 'write', path)
  },
  'checkout-index': (call, { operands }) => {
    for (const path of operands) applyValue(call, 'write', path)
  },
  bundle: (call, { operands }) => {
    if (operands[0] === 'create') touch(call, operands[1] ?? '', 'write')
  },
  grep: (call, { options, operands }) => {
    if (has(options, '--no-index')) for (const path of operands.slice(1)) touch(call, path, 'read')
  },
}

/** git, whose options and settings can start programs in many ways. */
export const GIT: Readonly<Record<string, Handler>> = { git }
