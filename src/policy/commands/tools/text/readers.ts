import { isInWorkspace } from '../../../../model/files/path.ts'
import { applyValue, note, touch } from '../../effects.ts'
import { asked, boxed } from '../../finding.ts'
import { absolute } from '../../paths.ts'
import { ANY, isStatic, show } from '../../shell/unknown-text.ts'
import type { Call, Handler } from '../../walk.ts'
import { READER_TABLES, TEXT_TABLES } from '../option-tables.ts'
import { tools } from '../tool.ts'
import { jqFiles, jqProgram } from './jq.ts'

const writes = (names: string): Readonly<Record<string, string>> =>
  Object.fromEntries(names.split(' ').map((name) => [name, 'write']))

/** Programs that only display data. `rules/reading.ts` lists those that may run on the host. */
export const READERS: Readonly<Record<string, Handler>> = {
  ...tools(
    {
      'cat tac rev nl expand unexpand fold fmt cmp comm join': { operands: 'read' },
      // Not on the host: `pr` and `ptx` format pages of any size.
      'pr ptx tsort': {
        effects: { '-b': 'read', '--break-file': 'read', '-i': 'read', '--ignore-file': 'read' },
        operands: 'read',
      },
      'head tail': {
        effects: {
          '-f': 'box: waits without end',
          '-F': 'box: waits without end',
          '--follow': 'box: waits without end',
          '--retry': 'box: waits without end',
          '--pid': 'box: waits for a process',
        },
        operands: 'read',
      },
      'less more most bat batcat pygmentize': {
        short: 'jPpTtxyzDlH',
        long: 'language line-range theme style tabs wrap',
        effects: {
          '-o': 'write',
          '-O': 'write',
          '--log-file': 'write',
          '--LOG-FILE': 'write',
          '-k': 'read',
          '--lesskey-file': 'read',
          '--lesskey-src': 'read',
          '--pager': 'program',
          '--config-file': 'ask: settings that can start programs',
        },
        operands: 'read',
        also: pagerCommands,
      },
      wc: { effects: { '--files0-from': 'read' }, operands: 'read' },
      'ls dir vdir exa eza lsd': {
        short: 'wITL',
        long: 'ignore hide width tabsize block-size color sort time time-style format level',
        operands: 'list',
        also: (call, { options, operands }) => {
          if (options.some(({ name }) => name === '-R' || name === '--recursive')) walks(call, operands)
        },
      },
      'stat readlink realpath': { operands: 'list' },
      file: {
        effects: {
          '-f': 'read',
          '--files-from': 'read',
          '-m': 'read',
          '--magic-file': 'read',
        },
        operands: 'read',
      },
      'du df': {
        effects: { '--files0-from': 'read', '-X': 'read', '--exclude-from': 'read' },
        operands: 'read',
        also: (call, { operands }) => (call.name === 'du' ? walks(call, operands) : undefined),
      },
      tree: {
        effects: {
          '-o': 'write',
          '--infofile': 'read',
          '--gitfile': 'read',
          '--fromfile': 'box: reads a list of names',
        },
        operands: 'read',
        also: (call, { operands }) => walks(call, operands),
      },
      'md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum shasum md5 crc32': {
        short: 'a',
        long: 'algorithm length',
        effects: {
          '-c': 'box: reads the files that a list names',
          '--check': 'box: reads the files that a list names',
        },
        operands: 'read',
      },
      'base64 base32 basenc': {
        effects: { '-o': 'write', '--output': 'write' },
        operands: 'read',
      },
      'od hexdump hd strings': {
        effects: { '--format-file': 'read' },
        operands: 'read',
        also: (call, { options }) => {
          if (call.name !== 'od')
            for (const { name, value } of options) if (name === '-f') touch(call, value ?? '', 'read')
          responseFiles(call)
        },
      },
      'diff colordiff sdiff diff3': {
        short: 'CUWIxFDS',
        long: 'label width exclude ignore-matching-lines horizon-lines',
        effects: {
          '-X': 'read',
          '--exclude-from': 'read',
          '--from-file': 'read',
          '--to-file': 'read',
          '-o': 'write',
          '--output': 'write',
          '--diff-program': 'program',
          '-l': 'box: starts `pr`',
          '--paginate': 'box: starts `pr`',
        },
        operands: 'read',
        also: (call, { options, operands }) => {
          if (options.some(({ name }) => name === '-r' || name === '--recursive'))
            for (const path of operands) touch(call, path, 'tree')
        },
      },
      look: { operands: 'pattern' },
      column: { operands: 'read' },
      jq: {
        long: 'indent',
        effects: {
          '-f': 'read',
          '--from-file': 'read',
          '-L': 'read',
        },
        operands: 'pattern',
        patternOptions: ['-f', '--from-file'],
        also: jqProgram,
      },
      'yq gojq xq': {
        effects: {
          '-f': 'read',
          '--from-file': 'read',
          '-L': 'read',
          '--library-path': 'read',
          '--rawfile': 'data',
          '--slurpfile': 'data',
          '--arg': 'data',
          '--argjson': 'data',
          '-i': 'box: changes files in place',
          '--inplace': 'box: changes files in place',
        },
        operands: 'pattern',
        patternOptions: ['-f', '--from-file', '--arg', '--argjson'],
        also: jqFiles,
      },
      'xmllint xmlstarlet tidy': {
        effects: {
          '-o': 'write',
          '--output': 'write',
          '--path': 'read',
          '--xpath': 'data',
          '--schema': 'read',
          '--dtdvalid': 'read',
          '--noent': 'box: reads what the document names',
          '--xinclude': 'box: reads what the document names',
          '--shell': 'ask: starts a shell',
        },
        also: (call, { operands }) => {
          for (const operand of operands) applyValue(call, operand.includes('://') ? 'url' : 'read', operand)
          if (operands.some((operand) => operand.includes('://')))
            call.node.findings.push(asked('network/request', 'connects to another machine'))
        },
      },
      'ldd nm objdump readelf size otool': {
        effects: { '--plugin': 'program' },
        operands: 'read',
        also: (call) => {
          // ldd may execute the file that it examines.
          if (call.name === 'ldd')
            call.node.findings.push(asked('programs/ldd', '`ldd` can run the file it examines'))
          responseFiles(call)
        },
      },
      'open xdg-open': { operands: 'url' },
      'bc dc': {
        short: 'efS',
        effects: { '-e': 'data', '-f': 'read' },
        operands: 'read',
        also: ({ node, stdin, name, args }) => {
          if (name === 'dc' && /!/.test(stdin.text + args.join(' ')))
            node.findings.push(asked('programs/dc', '`!` in dc runs a shell command'))
        },
      },
      'exiftool identify ffprobe mediainfo pdfinfo pdftotext': {
        short: '',
        effects: { '-o': 'write', '-out': 'write', '-config': 'read' },
        operands: 'read',
      },
      'cloc tokei scc': {
        short: 'efist',
        long: 'exclude include-ext exclude-dir exclude-ext include-lang exclude-lang match-f not-match-f match-d fullpath sort type languages by-percent',
        effects: {
          '--extract-with': 'program',
          '--script-lang': 'data',
          '--config': 'ask: settings that can start programs',
          ...writes(
            '--out --report-file --ignored --counted --found --categorized --sql --write-lang-def -o --output',
          ),
          '--format-multi': 'box: writes files',
          '--read-lang-def': 'read',
          '--force-lang-def': 'read',
          '--list-file': 'read',
          '--exclude-list-file': 'read',
        },
        operands: 'read',
      },
    },
    { ...READER_TABLES, jq: TEXT_TABLES.jq as string },
  ),
  xxd,
}

/** `xxd` has words as options (`-len`), takes their values attached or as the next word, and writes its second operand. */
const XXD_FLAG =
  /^-(a|autoskip|b|bits|C|capitalize|d|E|EBCDIC|e|i|include|p|ps|postscript|plain|r|revert|u|upper|v|version|h|help)$/
const XXD_VALUE = /^-(c|cols|g|group|groupsize|l|len|n|name|o|offset|s|seek|skip)(-?\+?\w*)$/

function xxd(call: Call): undefined {
  const operands: string[] = []
  for (let at = 0; at < call.args.length; at++) {
    const arg = call.args[at] as string
    // Options end at the first file.
    if (arg[0] !== '-' || arg === '-' || operands.length > 0) operands.push(arg)
    else if (XXD_VALUE.test(arg)) {
      if (XXD_VALUE.exec(arg)?.[2] === '') touch(call, call.args[++at] ?? '', 'read')
    } else if (!XXD_FLAG.test(arg))
      call.node.findings.push(
        boxed('programs/option', `\`${show(arg)}\` is an option that is not known here`),
      )
  }
  if (call.args.some((arg) => !isStatic(arg))) note(call, 'an argument is known only when it runs')
  for (const [index, path] of operands.entries()) touch(call, path, index === 0 ? 'read' : 'write')
  return undefined
}

/** Walking a system directory takes minutes. */
function walks(call: Call, roots: readonly string[]): void {
  const { workspace } = call.walk.context
  const cwds = call.scope.cwds.length === 0 ? [ANY] : call.scope.cwds
  if (roots.some((root) => cwds.some((cwd) => !isInWorkspace(absolute(root, cwd), workspace))))
    call.node.findings.push(boxed('paths/whole-disk', 'walks over files outside of the workspace'))
}

/** `strings @file` reads arguments from the file. */
function responseFiles(call: Call): void {
  if (call.name === 'od' || call.name === 'hexdump' || call.name === 'hd') return
  for (const arg of call.args) {
    if (arg[0] !== '@') continue
    touch(call, arg.slice(1), 'read')
    call.node.findings.push(boxed('programs/option', 'takes its arguments from a file'))
  }
}

/** `less +!cmd` runs a command. */
function pagerCommands(call: Call): void {
  if (call.args.some((arg) => /^\+(?!\d*$|G$)/.test(arg)))
    call.node.findings.push(boxed('programs/pager', 'gives the pager a command'))
  if (call.args.some((arg) => /^\+.*[!|]/.test(arg)))
    call.node.findings.push(asked('programs/pager', 'makes the pager run a command'))
}
