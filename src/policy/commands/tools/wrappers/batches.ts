import { applyOption, runText } from '../../effects.ts'
import { boxed, denied, unseen } from '../../finding.ts'
import { parseOptions } from '../../options.ts'
import { UNKNOWN } from '../../shell/scope.ts'
import { isStatic, SPLIT } from '../../shell/unknown-text.ts'
import { deeper, type Handler } from '../../walk.ts'
import { names } from '../tool.ts'

const XARGS = {
  short: 'IniLlPsdEea',
  long: 'replace max-args max-lines max-procs max-chars delimiter eof arg-file process-slot-var',
  effects: { '-a': 'read', '--arg-file': 'read' },
  prefix: true,
}

const xargs: Handler = (call) => {
  // -i, -e and -l take a value only if it is attached.
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
  // A shell whose command comes from the input can run anything.
  const fed = /^-\w*c$/.test(command.at(-1) ?? '') || (mark !== undefined && command.at(-1) === mark)
  if (/^(.*\/)?(ba|da|z|k|a)?sh$/.test(command[0] ?? '') && fed)
    call.node.findings.push(
      call.stdin.from.has('network')
        ? denied('download/execute', 'runs downloaded code')
        : unseen('wrappers/xargs-shell', 'a shell runs lines from its input'),
    )
  for (const argv of runs) deeper(call.walk, () => call.walk.run(call.scope, argv, UNKNOWN))
  return UNKNOWN
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

/** `parallel cmd {} ::: a b`, or commands read from its input. */
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

/** Several arguments, each a shell line: `concurrently "a" "b"`, `hyperfine 'cmd'`. */
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

/** `run-s lint test:*` runs scripts of the package, as `npm run` does. */
const scripts: Handler = (call) => {
  const { options } = parseOptions({ long: 'npm-path', effects: { '--npm-path': 'program' } }, call.args)
  for (const option of options) applyOption(call, option)
  call.node.findings.push(boxed('packages/run', 'runs scripts that are known only when they run'))
  return UNKNOWN
}

/** Programs that build several commands from their arguments or input lines. */
export const BATCHES: Readonly<Record<string, Handler>> = {
  xargs,
  parallel,
  ...names('concurrently hyperfine', lines),
  ...names('npm-run-all run-p run-s', scripts),
}
