import { codeFindings } from '../../code.ts'
import { applyValue, runText, touch } from '../../effects.ts'
import { asked, boxed, denied, unseen } from '../../finding.ts'
import { parseOptions } from '../../options.ts'
import { absolute } from '../../paths.ts'
import { runFile } from '../../run-file.ts'
import { ANY, isStatic } from '../../shell/unknown-text.ts'
import type { Call, Handler } from '../../walk.ts'
import { READER_TABLES, TEXT_TABLES } from '../option-tables.ts'
import { applyOptions, tools } from '../tool.ts'
import { isPlainAwk, isPlainSed } from './filter-scripts.ts'

const SED = {
  exact: TEXT_TABLES.sed as string,
  effects: { '-e': 'data', '--expression': 'data', '-f': 'read', '--file': 'read' },
  patternOptions: ['-e', '--expression'],
}

/** `s/a/b/e`, `e cmd`, `w file`, `r file` at positions where sed expects a command. */
function judgeSedScript(call: Call, script: string): void {
  if (!isStatic(script) || script.length > MAX_SCRIPT) {
    call.node.findings.push(boxed('text/sed', 'a sed script that cannot be read before it runs'))
    return
  }
  if (!isPlainSed(script)) call.node.findings.push(boxed('text/sed', 'a script that does more than filter'))
  for (const part of script.split(/\n|;(?![^/|,#]*[/|,#][^/|,#]*$)/)) judgeSedCommand(call, part.trim())
}

const MAX_SCRIPT = 2048

const SED_ADDRESS =
  /^((\d+|\$|\/(?:[^/\\]|\\.)*\/[IM]*|\\(.)(?:(?!\3).)*\3)([,~+](\d+|\$|\/(?:[^/\\]|\\.)*\/))?\s*!?\s*)?[{}\s]*/

function judgeSedCommand(call: Call, text: string): void {
  const command = text.replace(SED_ADDRESS, '')
  const substitute = /^[sy](.)/.exec(command)
  if (substitute) {
    const flags = sedFlags(command, substitute[1] as string)
    if (flags.includes('e')) runSed(call, flags, command)
    const file = /w\s*(\S+)/.exec(flags)?.[1]
    if (file !== undefined && !/^\/dev\/std/.test(file)) touch(call, file, 'write')
    return
  }
  const run = /^e(\s+(.*))?$/s.exec(command)
  if (run) {
    call.node.findings.push(asked('text/sed-exec', 'sed runs a shell command'))
    if (run[2]) runText(call, run[2])
  }
  const file = /^([wWrR])\s*(\S+)/.exec(command)
  if (file) touch(call, file[2] as string, /w/i.test(file[1] as string) ? 'write' : 'read')
}

function sedFlags(command: string, mark: string): string {
  let seen = 0
  for (let at = 1; at < command.length; at++) {
    if (command[at] === '\\') at++
    else if (command[at] === mark && ++seen === 3) return command.slice(at + 1)
  }
  return ''
}

function runSed(call: Call, _flags: string, command: string): void {
  call.node.findings.push(unseen('text/sed-exec', 'sed runs the text that it made as a shell command'))
  const replacement = command.split(command[1] as string)[2] ?? ''
  runText(call, replacement.replaceAll('\\', ''))
}

const sed: Handler = (call) => {
  const parsed = parseOptions(SED, call.args)
  const { options, operands } = parsed
  const inPlace = options.some(({ name }) => name === '-i' || name.startsWith('--in-p'))
  const scripts = options
    .filter(({ name }) => name === '-e' || name === '--expression')
    .map(({ value }) => value ?? '')
  const given = scripts.length > 0 || options.some(({ name }) => name === '-f' || name === '--file')
  applyOptions(call, SED, parsed)
  for (const { name, value } of options)
    if (name === '-f' || name === '--file') runFile(call, value ?? '', 'sed')
  // BSD sed treats the word after `-i` as a suffix.
  const shift = inPlace && operands[0] === '' ? 2 : 1
  for (const script of given ? scripts : operands.slice(0, shift)) judgeSedScript(call, script)
  for (const path of given ? operands : operands.slice(1)) touch(call, path, inPlace ? 'write' : 'read')
  return undefined
}

const AWK = {
  exact: TEXT_TABLES.awk as string,
  patternOptions: ['-F', '-v', '-e', '--assign', '--field-separator', '--source'],
  effects: {
    '-f': 'read',
    '--file': 'read',
    '-E': 'read',
    '--exec': 'read',
    '-i': 'read',
    '--include': 'read',
    '-l': 'program',
    '--load': 'program',
    '-o': 'ask: writes a file',
    '-p': 'ask: writes a profile',
    '-d': 'ask: writes variables',
    '-D': 'ask: starts a debugger',
    '--pretty-print': 'ask: writes a file',
    '--profile': 'ask: writes a profile',
    '--dump-variables': 'ask: writes variables',
    '--debug': 'ask: starts a debugger',
  },
}
const AWK_RUNS = /\bsystem\s*\(|\|\s*getline|\|&|\|\s*("|[a-zA-Z_])|\/inet6?\//

const awk: Handler = (call) => {
  const parsed = parseOptions(AWK, call.args)
  const { options, operands } = parsed
  applyOptions(call, AWK, parsed)
  const given = options.some(({ name }) => ['-f', '--file', '-E', '--exec'].includes(name))
  const program = given ? '' : (operands[0] ?? '')
  if (given) call.node.findings.push(boxed('text/awk-file', 'awk runs a program from a file'))
  judgeAwk(call, program)
  for (const { name, value } of options) if (name === '-e' || name === '--source') judgeAwk(call, value ?? '')
  const inPlace = options.some(({ value }) => value === 'inplace')
  for (const path of given ? operands : operands.slice(1))
    if (!/^\w+=/.test(path)) touch(call, path, inPlace ? 'write' : 'read')
  return undefined
}

function judgeAwk(call: Call, program: string): void {
  if (!isStatic(program) || program.length > MAX_SCRIPT)
    call.node.findings.push(boxed('text/awk', 'an awk program that cannot be read before it runs'))
  if (program.length > MAX_SCRIPT) return
  if (!isPlainAwk(program)) call.node.findings.push(boxed('text/awk', 'a program that does more than filter'))
  if (/^\s*@(load|include)|[;}\n]\s*@(load|include)/.test(program))
    call.node.findings.push(unseen('text/awk-load', 'awk loads other code'))
  if (/\/inet6?\/(tcp|udp)/.test(program))
    call.node.findings.push(denied('network/awk', 'awk opens a network connection'))
  if (AWK_RUNS.test(program) && call.stdin.from.has('network'))
    call.node.findings.push(denied('download/execute', 'passes downloaded data to programs'))
  if (AWK_RUNS.test(program))
    call.node.findings.push(
      ...codeFindings(call.walk, program, 'awk'),
      asked('text/awk-run', 'awk starts other programs'),
    )
  if (/\bARG[VC]\b[^;}\n]*=(?!=)/.test(program))
    call.node.findings.push(unseen('text/awk-files', 'awk chooses itself which files it reads'))
  if (/\bENVIRON\b/.test(program))
    call.node.findings.push(boxed('text/awk-environment', 'awk reads environment variables'))
  for (const match of program.matchAll(/(?:print|printf)[^;}\n]*>+\s*"([^"]*)"/g))
    applyValue(call, 'write', match[1] as string)
  if (/(?:print|printf)[^;}\n]*>\s*[a-zA-Z_($]/.test(program))
    call.node.findings.push(unseen('text/awk-write', 'awk writes a file whose name it computes'))
  for (const match of program.matchAll(/getline\s*(?:\w+\s*)?<\s*"([^"]*)"/g))
    applyValue(call, 'read', match[1] as string)
  if (/getline\s*(?:\w+\s*)?<\s*[a-zA-Z_(]/.test(program))
    call.node.findings.push(asked('text/awk-read', 'awk reads a file whose name it computes'))
}

/** Programs that transform text, and may write files or run programs as a side effect. */
export const TEXT: Readonly<Record<string, Handler>> = {
  sed,
  awk,
  ...tools(
    {
      sort: {
        patternOptions: ['-t', '--field-separator'],
        effects: {
          '-o': 'write',
          '--output': 'write',
          '--compress-program': 'program',
          '-T': 'write',
          '--temporary-directory': 'write',
          '--files0-from': 'read',
          '--random-source': 'read',
        },
        operands: 'read',
      },
      uniq: { operands: 'pair' },
      'cut paste': { operands: 'read' },
      tr: {},
      shuf: {
        effects: {
          '-o': 'write',
          '--output': 'write',
          '--random-source': 'read',
          '-r': 'box: prints without end',
          '--repeat': 'box: prints without end',
        },
        operands: 'read',
      },
      split: {
        short: 'abCln',
        long: 'suffix-length bytes line-bytes lines number additional-suffix separator prefix suffix-format digits',
        effects: { '--filter': 'program' },
        operands: 'pair',
      },
      tee: {
        effects: {},
        operands: 'write',
        also: (call, { operands }) => {
          const { scope, stdin } = call
          // To tee, `-` is a file like any other.
          if (operands.includes('-')) touch(call, './-', 'write')
          for (const path of operands)
            if (isStatic(path) && stdin.piped)
              scope.files.set(absolute(path, scope.cwds[0] ?? ANY), { kind: 'content', stream: stdin })
        },
      },
      iconv: {
        effects: { '-o': 'write', '--output': 'write' },
        operands: 'read',
      },
      'dos2unix unix2dos': { operands: 'write' },
      envsubst: {
        also: ({ node }) => {
          node.findings.push(boxed('secrets/environment', 'prints environment variables'))
        },
      },
      yes: {
        also: ({ node }) => {
          node.findings.push(boxed('resource/endless', 'prints without end'))
        },
      },
      patch: {
        short: 'pBDFgVYz',
        long: 'strip',
        effects: {
          '-i': 'read',
          '--input': 'read',
          '-o': 'write',
          '--output': 'write',
          '-d': 'write',
          '--directory': 'write',
          '-r': 'write',
          '--reject-file': 'write',
        },
        operands: 'write',
      },
      pandoc: {
        short: 'frtVMHBA',
        long: 'from to variable metadata include-in-header',
        effects: {
          '-o': 'write',
          '--output': 'write',
          '-F': 'program',
          '--filter': 'program',
          '-L': 'program',
          '--lua-filter': 'program',
          '--pdf-engine': 'program',
          '--template': 'read',
          '--extract-media': 'write',
        },
        operands: 'read',
      },
      'pdflatex latex xelatex lualatex tex pdftex latexmk luatex': {
        single: true,
        effects: {
          '-shell-escape': 'ask: lets the document run programs',
          '--shell-escape': 'ask: lets the document run programs',
          '-enable-write18': 'ask: lets the document run programs',
          '-e': 'code',
          '-pdflatex': 'program',
          '-output-directory': 'write',
          '-latex': 'program',
          '-jobname': 'data',
        },
        also: (call, { operands }) => {
          for (const text of operands)
            if (/write18/.test(text)) runText(call, /write18\s*\{([^}]*)\}/.exec(text)?.[1] ?? '')
        },
      },
      'convert magick mogrify montage composite gs ghostscript': {
        single: true,
        also: (call, { operands }) => {
          call.node.findings.push(boxed('programs/convert', 'converts files'))
          for (const path of operands) applyValue(call, 'read', path)
          if (
            operands.some(
              (path) =>
                /^(msl|ephemeral|https?|url|mvg|text|label):|\|/.test(path) || path.startsWith('%pipe%'),
            )
          )
            call.node.findings.push(asked('programs/convert', 'an input that can run programs'))
        },
      },
      ffmpeg: { single: true, effects: { '-i': 'read' }, operands: 'write' },
    },
    { ...TEXT_TABLES, iconv: READER_TABLES.iconv as string },
  ),
}
