import { addressFindings } from '../address.ts'
import { applyOption, applyValue, touch } from '../effects.ts'
import { asked, boxed, denied } from '../finding.ts'
import { protectedName } from '../name-patterns.ts'
import { parseOptions } from '../options.ts'
import { absolute, pathFindings } from '../paths.ts'
import { ANY, isStatic } from '../shell/unknown-text.ts'
import type { Call, Handler } from '../walk.ts'
import { tool, tools } from './tool.ts'

const COPY = {
  short: 'Sgom',
  long: 'suffix group owner mode backup sparse',
  effects: { '-t': 'write', '--target-directory': 'write' },
}

/** A copy of a program under another name has the effect of the original program. */
function remember(call: Call, source: string | undefined, target: string | undefined): void {
  if (source === undefined || target === undefined || !isStatic(source) || !isStatic(target)) return
  const cwd = call.scope.cwds[0] ?? ANY
  const from = absolute(source, cwd)
  const to = absolute(target, cwd)
  const made = call.scope.files.get(from)
  if (made) call.scope.files.set(to, made)
  else if (/\/s?bin\//.test(from)) call.scope.files.set(to, { kind: 'copy', of: from })
}

const copies = (from: 'copy' | 'move'): Handler =>
  tool({
    ...COPY,
    operands: from,
    also: (call, { operands }) => remember(call, operands[0], operands.at(-1)),
  })

const link: Handler = (call) => {
  const { options, operands } = parseOptions(COPY, call.args)
  for (const option of options) applyOption(call, option)
  const [target, name] = operands
  if (target !== undefined) {
    touch(call, target, 'read')
    // Writing through the link writes to its target.
    const found = pathFindings(call.walk, call.scope, target, 'write')
    call.node.findings.push(...found.filter(({ rule }) => rule.startsWith('protect/')))
  }
  const made = name ?? (target === undefined ? undefined : target.slice(target.lastIndexOf('/') + 1))
  if (made !== undefined) touch(call, made, 'write')
  for (const other of operands.slice(2)) touch(call, other, 'write')
  remember(call, target, made)
  return undefined
}

const SETUID = /^0*[2467]\d{3}$|[ugoa]*[+=][rwxXt]*s/

const dd: Handler = (call) => {
  for (const arg of call.args) {
    const [key, value = ''] = [arg.slice(0, arg.indexOf('=')), arg.slice(arg.indexOf('=') + 1)]
    if (key === 'if') touch(call, value, 'read')
    else if (key === 'of') touch(call, value, 'write')
  }
  const value = (key: string): string | undefined =>
    call.args.find((arg) => arg.startsWith(`${key}=`))?.slice(key.length + 1)
  remember(call, value('if'), value('of'))
  call.node.findings.push(boxed('files/dd', 'copies bytes'))
  return undefined
}

const RSYNC = {
  short: 'fTBM',
  long: 'filter exclude include max-size min-size bwlimit timeout port address chmod chown usermap groupmap out-format suffix compare-dest copy-dest link-dest',
  effects: {
    '-e': 'program',
    '--rsh': 'program',
    '--rsync-path': 'program',
    '--log-file': 'write',
    '--password-file': 'read',
    '--files-from': 'read',
    '--exclude-from': 'read',
    '--include-from': 'read',
    '--backup-dir': 'write',
    '--partial-dir': 'write',
    '-T': 'write',
    '--temp-dir': 'write',
    '--write-batch': 'write',
    '--daemon': 'deny: serves files on the network',
  },
}
const REMOTE = /^[^/]*:|^rsync:\/\//

const rsync: Handler = (call) => {
  const { options, operands } = parseOptions(RSYNC, call.args)
  for (const option of options) {
    applyOption(call, option)
    if (/^(--include|-f|--filter)$/.test(option.name) && protectedName(option.value ?? ''))
      call.node.findings.push(asked('protect/soft', 'copies protected names'))
  }
  const target = operands.at(-1)
  const deletes = options.some(({ name }) => name.startsWith('--del') || name === '--remove-source-files')
  for (const source of operands.slice(0, -1)) if (!REMOTE.test(source)) touch(call, source, 'tree')
  if (target !== undefined && !REMOTE.test(target)) touch(call, target, deletes ? 'delete' : 'write')
  if (!operands.some((operand) => REMOTE.test(operand))) return undefined
  call.node.findings.push(asked('network/copy', 'copies files to or from another machine'))
  for (const remote of operands.filter((operand) => REMOTE.test(operand)))
    call.node.findings.push(
      ...addressFindings(call.walk, call.scope, remote.replace(/^rsync:\/\//, '').replace(/:.*$/, '')),
    )
  return undefined
}

/** Programs that change files. Every path they change is judged as a write or a delete. */
export const FILES: Readonly<Record<string, Handler>> = {
  cp: copies('copy'),
  mv: copies('move'),
  install: tool({
    ...COPY,
    effects: { ...COPY.effects, '--strip-program': 'program' },
    operands: 'copy',
    also: (call, { operands }) => remember(call, operands[0], operands.at(-1)),
  }),
  ln: link,
  link,
  dd,
  rsync,
  ...tools({
    'rm unlink rmdir': { long: 'interactive', operands: 'delete' },
    'trash trash-put gio': { operands: 'delete' },
    'shred srm wipe': {
      short: 'ns',
      long: 'iterations size random-source',
      operands: 'delete',
      also: ({ node }) => {
        node.findings.push(asked('destructive/shred', 'destroys the content of files'))
      },
    },
    mkdir: { short: 'mZ', long: 'mode context', operands: 'write' },
    mktemp: {
      short: 'p',
      long: 'suffix tmpdir',
      operands: 'data',
      also: ({ node }) => {
        node.findings.push(boxed('files/temporary', 'makes a temporary file'))
      },
    },
    mkfifo: { short: 'mZ', operands: 'write' },
    mknod: {
      short: 'mZ',
      operands: 'data',
      also: (call, { operands }) => {
        if (/^[bcu]$/.test(operands[1] ?? ''))
          call.node.findings.push(denied('escape/device', 'creates a device node'))
        applyValue(call, 'write', operands[0] ?? '')
      },
    },
    touch: {
      short: 'dtr',
      long: 'time',
      effects: {
        '-r': 'ask: forges the time of a file',
        '--reference': 'ask: forges the time of a file',
        '-d': 'ask: forges the time of a file',
        '--date': 'ask: forges the time of a file',
        '-t': 'ask: forges the time of a file',
      },
      operands: 'write',
    },
    truncate: { short: 'sr', long: 'size reference', operands: 'write' },
    fallocate: { short: 'lop', long: 'length offset', operands: 'write' },
    chmod: {
      long: 'reference',
      operands: 'data-write',
      also: (call, { operands }) => {
        const mode = call.args.find((arg) => SETUID.test(arg))
        if (mode !== undefined)
          call.node.findings.push(denied('privilege/setuid', `\`${mode}\` makes a file run as its owner`))
        if (call.args.includes('-R') && operands[1] === undefined)
          applyValue(call, 'write', operands[0] ?? '')
      },
    },
    'chown chgrp': {
      long: 'from reference',
      operands: 'data-write',
      also: (call, { operands }) => {
        if (/^(root|0)(:|$)/.test(operands[0] ?? ''))
          call.node.findings.push(denied('privilege/owner', 'changes the owner of a file to root'))
      },
    },
    'chattr setfacl setfattr': { short: 'mxMXnv', operands: 'write' },
    'rename prename': {
      operands: 'write',
      also: ({ node }) => {
        node.findings.push(boxed('files/rename', 'renames files by a program'))
      },
    },
  }),
}
