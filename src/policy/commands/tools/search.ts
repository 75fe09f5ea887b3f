import { applyOption, applyValue, runProgram, runText, touch } from '../effects.ts'
import { asked, boxed, denied } from '../finding.ts'
import { parseOptions } from '../options.ts'
import { pathFindings } from '../paths.ts'
import { BELOW, isStatic, meets, STAR } from '../shell/unknown-text.ts'
import { type Call, deeper, type Handler } from '../walk.ts'
import { tools } from './tool.ts'

const RECURSIVE = new Set(['-r', '-R', '--recursive', '--dereference-recursive'])

const GREP = {
  short: 'ABCmeDdTd',
  long: 'after-context before-context context max-count color colour binary-files devices directories label include exclude exclude-dir regexp',
  effects: { '-f': 'read', '--file': 'read', '--exclude-from': 'read', '-e': 'data', '--regexp': 'data' },
}

const grep: Handler = (call) => {
  const { options, operands } = parseOptions(GREP, call.args)
  for (const option of options) applyOption(call, option)
  const given = options.some(({ name }) => ['-e', '--regexp', '-f', '--file'].includes(name))
  const tree = options.some(
    ({ name, value }) => RECURSIVE.has(name) || (/^(-d|--directories)$/.test(name) && value === 'recurse'),
  )
  for (const path of given ? operands : operands.slice(1)) touch(call, path, tree ? 'tree' : 'read')
  return undefined
}

const NAME_TESTS = new Set([
  '-name',
  '-iname',
  '-path',
  '-ipath',
  '-wholename',
  '-iwholename',
  '-regex',
  '-iregex',
  '-lname',
])
const KEY_NAMES = [
  'id_rsa',
  'id_dsa',
  'id_ecdsa',
  'id_ed25519',
  '.ssh',
  '.aws',
  '.gnupg',
  '.netrc',
  '.pgpass',
  '.git-credentials',
  'shadow',
  '.kube',
  '.npmrc',
  '.pypirc',
  'credentials',
  '.docker',
  '.vault-token',
  '.password-store',
]

/** Whether a find pattern is after credentials. A pattern of little but wildcards is after nothing certain. */
function seeksSecrets(pattern: string): boolean {
  const bare = pattern.replace(/[*?[\]\\.^$|()]/g, '')
  if (bare.length < 3) return false
  const last = pattern.replace(/^[*/]+(?=.)/, STAR).replaceAll('*', STAR)
  return KEY_NAMES.some(
    (name) =>
      meets(last, name) ||
      meets(last.replaceAll('/', ''), name) ||
      (bare.length > 3 && pattern.includes(name)),
  )
}

const find: Handler = (call) => {
  const { args } = call
  const first = args.findIndex((arg) => /^[-(!]/.test(arg) && !/^-[HLPO]\d?$/.test(arg))
  const roots = args.slice(0, first === -1 ? args.length : first).filter((arg) => !/^-[HLPO]/.test(arg))
  if (roots.length === 0) roots.push('.')
  const tests = first === -1 ? [] : args.slice(first)
  const filtered = tests.some((test) => NAME_TESTS.has(test) || test === '-empty')
  for (const root of roots)
    touch(call, root, tests.some((test) => /^-(exec|ok)/.test(test)) ? 'tree' : 'read')
  if (roots.some((root) => /^\/+$/.test(root)))
    call.node.findings.push(boxed('paths/whole-disk', 'walks over every file of the machine'))
  judgeTests(call, { roots, tests, filtered })
  return undefined
}

type Finding = {
  readonly roots: readonly string[]
  readonly tests: readonly string[]
  readonly filtered: boolean
}

function judgeTests(call: Call, found: Finding): void {
  const { tests, roots } = found
  const outside = roots.some(
    (root) =>
      !root.startsWith('.') &&
      pathFindings(call.walk, call.scope, root, 'write').some(({ action }) => action !== 'sandbox'),
  )
  for (let at = 0; at < tests.length; at++) {
    const test = tests[at] as string
    const value = tests[at + 1] ?? ''
    if (NAME_TESTS.has(test) && seeksSecrets(value))
      call.node.findings.push(
        outside
          ? denied('secrets/search', `looks for credentials (\`${value}\`)`)
          : asked('secrets/search', `looks for credentials (\`${value}\`)`),
      )
    if (/^-(fprint0?|fls|fprintf)$/.test(test)) touch(call, value, 'write')
    if (/^-(newer\w*|anewer|cnewer|samefile|files0-from)$/.test(test)) touch(call, value, 'read')
    if (test === '-delete') deletes(call, found)
    if (/^-(exec|execdir|ok|okdir)$/.test(test)) at = executes(call, found, at)
  }
}

function deletes(call: Call, { roots, filtered }: Finding): void {
  for (const root of roots) touch(call, filtered ? `${root}/${BELOW}` : root, 'delete')
}

function executes(call: Call, { roots, tests }: Finding, at: number): number {
  let end = at + 1
  while (end < tests.length && tests[end] !== ';' && !(tests[end] === '+' && tests[end - 1] === '{}')) end++
  const command = tests.slice(at + 1, end)
  const only = tests.indexOf('-maxdepth') !== -1 && tests[tests.indexOf('-maxdepth') + 1] === '0'
  for (const root of roots.slice(0, 8)) {
    const path = only ? root : `${root.replace(/\/+$/, '')}/${BELOW}`
    const argv = command.map((word) => word.replaceAll('{}', path))
    if (argv.length > 0) deeper(call.walk, () => call.walk.run(call.scope, argv, call.stdin))
  }
  return end
}

const FD = {
  short: 'detTEScjgo',
  long: 'max-depth extension type exclude size changed-within color threads glob owner format',
  effects: { '--base-directory': 'read', '--search-path': 'read', '--ignore-file': 'read' },
  prefix: false,
}

/** `fd -x cmd…` runs everything after it. */
const fd: Handler = (call) => {
  const at = call.args.findIndex((arg) => /^(-x|-X|--exec|--exec-batch)(=|$)/.test(arg))
  const { options, operands } = parseOptions(FD, at === -1 ? call.args : call.args.slice(0, at))
  for (const option of options) applyOption(call, option)
  for (const path of operands.slice(1)) touch(call, path, 'read')
  if (at === -1) return undefined
  const attached = /=(.*)$/s.exec(call.args[at] as string)?.[1]
  const command = [...(attached !== undefined ? [attached] : []), ...call.args.slice(at + 1)].map((word) =>
    word.replace(/\{[/.]*\}/g, `./${BELOW}`),
  )
  if (command.length > 0) deeper(call.walk, () => call.walk.run(call.scope, command, call.stdin))
  return undefined
}

/** Programs that look for files and text. */
export const SEARCH: Readonly<Record<string, Handler>> = {
  grep,
  find,
  fd,
  fdfind: fd,
  ...tools({
    'rg ripgrep': {
      short: 'ABCmeEgjMtTdr',
      long: 'after-context before-context context max-count max-depth glob iglob type type-not type-add color colors replace sort sortr threads encoding engine max-columns max-filesize context-separator field-match-separator regexp hyperlink-format',
      effects: {
        '--pre': 'program',
        '--hostname-bin': 'program',
        '--pager': 'program',
        '-f': 'read',
        '--file': 'read',
        '--ignore-file': 'read',
        '-z': 'box: starts decompressors',
        '--search-zip': 'box: starts decompressors',
        '-e': 'data',
      },
      operands: 'pattern-tree',
      patternOptions: ['-e', '--regexp', '-f', '--file', '--files'],
    },
    'ag ack ugrep ug': {
      short: 'ABCmegjMtTG',
      long: 'after-context before-context context max-count max-depth glob type color replace sort output regexp',
      effects: {
        '--pager': 'program',
        '--filter': 'program',
        '--view': 'program',
        '--config': 'ask: settings that can start programs',
        '--ackrc': 'ask: settings that can start programs',
        '-f': 'read',
        '--file': 'read',
        '--path-to-ignore': 'read',
        '-e': 'data',
        '--save-config': 'write',
      },
      operands: 'pattern-tree',
      patternOptions: ['-e', '--regexp', '-f', '--file'],
    },
    'locate mlocate plocate mdfind': {
      short: 'dln',
      long: 'limit',
      effects: { '-d': 'read', '--database': 'read' },
      also: (call, { operands }) => {
        if (operands.some((operand) => isStatic(operand) && seeksSecrets(operand)))
          call.node.findings.push(denied('secrets/search', 'looks for credentials'))
      },
    },
    fzf: { effects: { '--preview': 'shell', '--bind': 'program', '-q': 'data', '--query': 'data' } },
    'sgrep ast-grep sg': {
      effects: { '-p': 'data', '-l': 'data', '-r': 'data', '-U': 'box: changes files' },
      operands: 'read',
    },
    entr: {
      prefix: true,
      also: (call, { operands }) => {
        if (operands.length > 0) deeper(call.walk, () => call.walk.run(call.scope, operands, call.stdin))
      },
    },
    'watchexec nodemon chokidar-cli': {
      effects: { '--exec': 'program', '-x': 'program' },
      also: (call, { operands }) => {
        const command = operands.join(' ')
        if (/\s/.test(command)) runText(call, command)
        else if (command !== '') runProgram(call, command)
        else applyValue(call, 'data', '')
      },
    },
  }),
}
