import { applyValue, runProgram, runText, touch } from '../../effects.ts'
import { asked, boxed, denied } from '../../finding.ts'
import { PROJECT_SECRETS, SECRETS } from '../../locations.ts'
import { entriesOf, firstOf } from '../../name-patterns.ts'
import { parseOptions } from '../../options.ts'
import { pathFindings } from '../../paths.ts'
import { BELOW, isStatic, patternText, show } from '../../shell/unknown-text.ts'
import { type Call, deeper, type Handler } from '../../walk.ts'
import { wideFormat } from '../machine.ts'
import { FIND_TESTS, FIND_VALUES, TEXT_TABLES } from '../option-tables.ts'
import { applyOptions, tools } from '../tool.ts'

const RECURSIVE = new Set(['-r', '-R', '--recursive', '--dereference-recursive'])

const GREP = {
  exact: TEXT_TABLES.grep as string,
  patternOptions: ['-e', '--regexp', '--label', '--exclude', '--exclude-dir'],
  effects: { '-f': 'read', '--file': 'read', '--exclude-from': 'read', '-e': 'data', '--regexp': 'data' },
}

const grep: Handler = (call) => {
  const parsed = parseOptions(GREP, call.args)
  const { options, operands } = parsed
  applyOptions(call, GREP, parsed)
  const given = options.some(({ name }) => ['-e', '--regexp', '-f', '--file'].includes(name))
  const tree = options.some(
    ({ name, value }) => RECURSIVE.has(name) || (/^(-d|--directories)$/.test(name) && value === 'recurse'),
  )
  const named = given ? operands : operands.slice(1)
  const paths = tree && named.length === 0 ? ['.'] : named
  const filters = options.filter(({ name }) => name === '--include').map(({ value }) => value ?? '')
  for (const path of paths) searchTree(call, path, tree ? filters : undefined)
  return undefined
}

/** A recursive search reads every file in the directory; `--include` narrows it to matching names. */
function searchTree(call: Call, path: string, filters: readonly string[] | undefined): void {
  if (filters === undefined) touch(call, path, 'read')
  else if (filters.length === 0) touch(call, path, 'tree')
  else {
    touch(call, path, 'read')
    for (const filter of filters) touch(call, `${path}/${patternText(filter)}`, 'read')
    // A path outside of the workspace is checked as a whole tree.
    const found = pathFindings(call.walk, call.scope, path, 'tree')
    call.node.findings.push(...found.filter(({ action }) => action !== 'sandbox'))
  }
}

/** Shell scripts that wrap grep and a decompressor: same arguments, never on the host. */
const zgrep: Handler = (call) => {
  call.node.findings.push(boxed('programs/script', 'starts decompressors'))
  return grep(call)
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
/** Names of keys and credentials, including the secrets of a project. */
const KEY_NAMES = entriesOf([...SECRETS, ...PROJECT_SECRETS, 'shadow', 'credentials', '.docker'])

/** A regular expression as the nearest glob. */
const globOf = (regex: string): string =>
  regex
    .replace(/\\\./g, '\0')
    .replace(/\.[*+]/g, '*')
    .replace(/\./g, '?')
    .replaceAll('\0', '.')

/** Whether a find pattern targets credentials. A pattern of mostly wildcards has no specific target. */
function seeksSecrets(pattern: string): boolean {
  const segments = patternText(pattern)
    .split('/')
    .filter((segment) => /[^\uFDD0-\uFDEF]/.test(segment))
  const bare = pattern.replace(/\[[^\]]*\]/g, '').replace(/[*?[\]\\.^$|()/]/g, '')
  if (bare.length < 3) return false
  return (
    firstOf({ segments, text: '', open: false }, KEY_NAMES) !== undefined ||
    (bare.length > 3 &&
      KEY_NAMES.all.some(
        (entry) =>
          isStatic(entry[0] as string) &&
          entry.length === 1 &&
          (entry[0] as string).length > 3 &&
          pattern.includes(entry[0] as string),
      ))
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
    judgeRoot(
      call,
      root,
      tests.some((test) => /^-(exec|ok)/.test(test)),
    )
  if (roots.some((root) => /^\/+$/.test(root)))
    call.node.findings.push(boxed('paths/whole-disk', 'walks over every file of the machine'))
  judgeTests(call, { roots, tests, filtered })
  return undefined
}

/** A search only discloses names, unless a program is started for each file. */
function judgeRoot(call: Call, root: string, starts: boolean): void {
  touch(call, root, starts ? 'read' : 'list')
  const found = starts ? pathFindings(call.walk, call.scope, root, 'tree') : []
  call.node.findings.push(...found.filter(({ action }) => action !== 'sandbox'))
}

/** The files below a root that pass the tests: those matching a single `-name`, else any. */
export function foundBelow(root: string, tests: readonly string[]): string {
  const below = `${root.replace(/\/+$/, '')}/${BELOW}`
  const names = tests.flatMap((test, index) => (test === '-name' ? [tests[index + 1] ?? ''] : []))
  const plain = names.length === 1 && !tests.some((test) => /^(-o|-or|!|-not|,)$/.test(test))
  return plain && isStatic(names[0] as string) && /[^*?]/.test(names[0] as string)
    ? `${below}/${patternText(names[0] as string)}`
    : below
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
    const excluded = /^(!|-not)$/.test(tests[at - 1] ?? '') || tests[at + 2] === '-prune'
    if (NAME_TESTS.has(test) && !excluded && seeksSecrets(/regex$/.test(test) ? globOf(value) : value))
      call.node.findings.push(
        outside
          ? denied('secrets/search', `looks for credentials (\`${value}\`)`)
          : asked('secrets/search', `looks for credentials (\`${value}\`)`),
      )
    if (/^-(fprint0?|fls|fprintf)$/.test(test)) touch(call, value, 'write')
    if (/^-(newer\w*|anewer|cnewer|samefile|files0-from)$/.test(test)) touch(call, value, 'read')
    if (test === '-delete') deletes(call, found)
    if (/^-(exec|execdir|ok|okdir)$/.test(test)) at = executes(call, found, at)
    else if (/^-/.test(test) && !FIND_TESTS.has(test) && !/^-\d/.test(test))
      call.node.findings.push(boxed('programs/option', `\`${show(test)}\` is a test that is not known here`))
    else if (FIND_VALUES.has(test)) at++
    if (/^-printf$/.test(test)) wideFormat(call, [value])
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
    const path = only ? root : foundBelow(root, tests)
    const argv = command.map((word) => word.replaceAll('{}', path))
    if (argv.length > 0) deeper(call.walk, () => call.walk.run(call.scope, argv, call.stdin))
  }
  return end
}

const FD = {
  exact: TEXT_TABLES.fd as string,
  effects: { '--base-directory': 'read', '--search-path': 'read', '--ignore-file': 'read' },
  prefix: false,
}

/** `fd -x cmd…` runs the rest of the line. */
const fd: Handler = (call) => {
  const at = call.args.findIndex((arg) => /^(-x|-X|--exec|--exec-batch)(=|$)/.test(arg))
  const parsed = parseOptions(FD, at === -1 ? call.args : call.args.slice(0, at))
  applyOptions(call, FD, parsed)
  for (const path of parsed.operands.slice(1)) touch(call, path, 'read')
  if (at === -1) return undefined
  const attached = /=(.*)$/s.exec(call.args[at] as string)?.[1]
  const command = [...(attached !== undefined ? [attached] : []), ...call.args.slice(at + 1)].map((word) =>
    word.replace(/\{[/.]*\}/g, `./${BELOW}`),
  )
  if (command.length > 0) deeper(call.walk, () => call.walk.run(call.scope, command, call.stdin))
  return undefined
}

/** Programs that search for files and text. */
export const SEARCH: Readonly<Record<string, Handler>> = {
  grep,
  zgrep,
  rgrep: (call) => grep({ ...call, args: ['-r', ...call.args] }),
  find,
  fd,
  fdfind: fd,
  ...tools(
    {
      'rg ripgrep': {
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
        patternOptions: ['-e', '--regexp', '-f', '--file', '--files', '--type-list', '-r', '--replace'],
        also: (call, { options, operands }) => {
          const given = options.some(({ name }) =>
            ['-e', '--regexp', '-f', '--file', '--files'].includes(name),
          )
          if (operands.length === (given ? 0 : 1)) touch(call, '.', 'tree')
          for (const { name, value } of options)
            if (/^(-g|--i?glob)$/.test(name) && value?.[0] !== '!')
              touch(call, patternText(value ?? ''), 'read')
        },
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
    },
    { rg: TEXT_TABLES.rg as string },
  ),
}
