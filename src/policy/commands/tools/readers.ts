import { applyValue, touch } from '../effects.ts'
import { asked, boxed, denied } from '../finding.ts'
import { isStatic } from '../shell/unknown-text.ts'
import type { Handler } from '../walk.ts'
import { tools } from './tool.ts'

const writes = (names: string): Readonly<Record<string, string>> =>
  Object.fromEntries(names.split(' ').map((name) => [name, 'write']))

/** Programs that show something. Whether they may run on the host is said in `rules/reading.ts`. */
export const READERS: Readonly<Record<string, Handler>> = {
  ...tools({
    'cat tac rev nl expand unexpand fold fmt pr': { short: 'wslhoWDNSve', operands: 'read' },
    'head tail': {
      short: 'ncs',
      long: 'lines bytes pid sleep-interval max-unchanged-stats',
      effects: {
        '-f': 'box: waits without end',
        '-F': 'box: waits without end',
        '--follow': 'box: waits without end',
      },
      operands: 'read',
    },
    'less more most bat batcat pygmentize': {
      short: 'jkPpTtxyzDlHr',
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
      operands: 'read',
    },
    'stat readlink realpath': {
      short: 'cfft',
      long: 'format printf relative-to relative-base',
      operands: 'read',
    },
    file: {
      short: 'eFPm',
      long: 'exclude separator parameter',
      effects: {
        '-f': 'read',
        '--files-from': 'read',
        '-m': 'read',
        '--magic-file': 'read',
        '-C': 'box: compiles a magic file',
        '--compile': 'box: compiles a magic file',
      },
      operands: 'read',
    },
    'du df': {
      short: 'dtBx',
      long: 'max-depth threshold block-size exclude type output time time-style',
      effects: { '--files0-from': 'read', '-X': 'read', '--exclude-from': 'read' },
      operands: 'read',
    },
    tree: {
      short: 'LPIHT',
      long: 'filelimit charset timefmt sort',
      effects: {
        '-o': 'write',
        '--infofile': 'read',
        '--gitfile': 'read',
        '--fromfile': 'box: reads a list of names',
      },
      operands: 'read',
    },
    'md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum shasum md5 crc32': {
      short: 'a',
      long: 'algorithm length',
      operands: 'read',
    },
    'base64 base32 basenc': {
      short: 'w',
      long: 'wrap',
      effects: { '-o': 'write', '--output': 'write', '-i': 'box: input' },
      operands: 'read',
    },
    xxd: { short: 'cglos', operands: 'pair' },
    'od hexdump hd strings': {
      short: 'AjNStwnesTbU',
      long: 'address-radix skip-bytes read-bytes strings format width bytes radix encoding target',
      effects: { '-f': 'read' },
      operands: 'read',
    },
    'diff colordiff sdiff diff3': {
      short: 'CUWIxFDS',
      long: 'context unified label width exclude ignore-matching-lines horizon-lines color',
      effects: {
        '-X': 'read',
        '--exclude-from': 'read',
        '--from-file': 'read',
        '--to-file': 'read',
        '-o': 'write',
        '--output': 'write',
        '--diff-program': 'program',
      },
      operands: 'read',
    },
    'cmp comm join': { short: 'ijntae12o', operands: 'read' },
    'basename dirname pathchk': { short: 's', long: 'suffix' },
    'echo pwd true false : whoami id groups logname users tty arch nproc uname uptime free lscpu lsb_release sw_vers locale cal ncal factor expr numfmt getconf which whereis type printenv test [ [[ who w last vmstat iostat hostid tput dircolors whatis apropos':
      { short: 'sfv', effects: {} },
    date: {
      short: 'dIrf',
      long: 'date iso-8601 rfc-3339',
      effects: {
        '-s': 'ask: sets the clock',
        '--set': 'ask: sets the clock',
        '-f': 'read',
        '--file': 'read',
        '-r': 'read',
        '--reference': 'read',
      },
    },
    'hostname domainname hostnamectl timedatectl': {
      effects: {
        '-F': 'ask: sets the name of the machine',
        '--file': 'ask: sets the name',
        '-b': 'ask: sets the name',
      },
      also: (call, { operands }) => {
        if (operands.some((operand) => !/^(status|show|list-timezones)$/.test(operand)))
          call.node.findings.push(denied('system/name', 'changes the settings of the machine'))
      },
    },
    ps: {
      short: 'opuUgGtCnPsFdbw',
      also: ({ node, args }) => {
        if (args.some((arg) => /^[a-z]*e[a-z]*$|^-\w*E/.test(arg)))
          node.findings.push(boxed('secrets/environment', 'prints environment variables'))
      },
    },
    'pgrep pidof top htop lsof fuser ss netstat pstree': {
      short: 'opuUgGtCnPsFdbw',
      effects: { '-k': 'ask: ends processes' },
    },
    look: { short: 't', operands: 'pattern' },
    'man info': {
      short: 'SseLMrmERCp',
      long: 'sections locale manpath encoding',
      effects: {
        '-P': 'program',
        '--pager': 'program',
        '-H': 'program',
        '--html': 'program',
        '--preprocessor': 'program',
        '-C': 'read',
        '--config-file': 'read',
        '-l': 'box: a local page',
        '--local-file': 'box: a local page',
        '-o': 'write',
        '--output': 'write',
        '--restore': 'ask: types keys that can run programs',
        '--init-file': 'read',
      },
      also: (call, { operands }) => {
        if (operands.some((operand) => operand.includes('/')))
          call.node.findings.push(boxed('programs/page', 'formats a page from a file'))
      },
    },
    column: {
      short: 'tcsonNHRdTExWl',
      long: 'separator output-separator table-columns output-width',
      operands: 'read',
    },
    'jq yq gojq xq': {
      short: '',
      long: 'indent',
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
      patternOptions: ['-f', '--from-file'],
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
        // ldd may run the file that it examines.
        if (call.name === 'ldd')
          call.node.findings.push(asked('programs/ldd', '`ldd` can run the file it examines'))
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
  }),
}

/** `jq --rawfile name file`: two values for one option. */
function jqFiles(call: Parameters<Handler>[0]): void {
  const { args } = call
  for (const [index, arg] of args.entries()) {
    if (!/^--(rawfile|slurpfile)/.test(arg)) continue
    const file = args[index + 2]
    if (file !== undefined) READERS.cat?.({ ...call, args: [file] })
  }
  for (const arg of args) {
    for (const match of arg.matchAll(/\bload(?:_\w+)?\s*\(\s*(?:"([^"]*)")?/g))
      if (match[1] === undefined)
        call.node.findings.push(asked('programs/jq', 'reads a file that it chooses itself'))
      else touch(call, match[1], 'read')
    if (/\bload(_\w+)?\s*\(/.test(arg)) call.node.findings.push(boxed('programs/jq', 'reads other files'))
    if (/(^|;)\s*(import|include)\s+"/.test(arg))
      call.node.findings.push(asked('programs/jq', 'loads modules or data from other files'))
    if (call.name === 'yq' && /^(-s|--split-exp)/.test(arg))
      call.node.findings.push(boxed('programs/jq', 'writes the parts of a document'))
    if (/\b(str)?env\s*\(/.test(arg))
      call.node.findings.push(boxed('secrets/environment', 'prints environment variables'))
  }
  if (
    args.some(
      (arg) =>
        isStatic(arg) &&
        /\$ENV|\benv\b|input_filename|\binput\b/.test(arg) &&
        /\$ENV|(^|[\s|(])env\b/.test(arg),
    )
  )
    call.node.findings.push(asked('secrets/environment', 'prints environment variables'))
}

/** `less +!cmd` runs a command. */
function pagerCommands(call: Parameters<Handler>[0]): void {
  if (call.args.some((arg) => /^\+.*[!|]/.test(arg)))
    call.node.findings.push(asked('programs/pager', 'makes the pager run a command'))
}
