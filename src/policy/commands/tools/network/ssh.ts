import { addressFindings } from '../../address.ts'
import { applyOption, runText, touch } from '../../effects.ts'
import { asked, denied, unseen } from '../../finding.ts'
import { parseOptions } from '../../options.ts'
import { UNKNOWN } from '../../shell/scope.ts'
import type { Call, Handler } from '../../walk.ts'
import { names, tools } from '../tool.ts'

const SSH_OPTIONS = {
  short: 'bBcDeEFiIJlLmOopQRSwW',
  effects: {
    '-i': 'read',
    '-F': 'read',
    '-E': 'write',
    '-R': 'deny: opens a tunnel from outside',
    '-D': 'ask: opens a proxy',
    '-L': 'ask: opens a tunnel',
    '-w': 'deny: opens a network tunnel',
    '-o': 'data',
  },
  prefix: true,
}
const SSH_RUNS =
  /^(proxycommand|localcommand|knownhostscommand|permitlocalcommand|pkcs11provider|securitykeyprovider|proxyusefdpass|include|match)\s*[= ]/i

/** `-R` and `-w` take a value too, so they stay in `short`; their presence alone is the effect. */
const ssh: Handler = (call) => {
  const { options, operands } = parseOptions(SSH_OPTIONS, call.args)
  for (const option of options) {
    if (option.name === '-o') judgeSshOption(call, option.value ?? '')
    else if (option.name === '-R' || option.name === '-w')
      call.node.findings.push(denied('network/tunnel', 'opens a tunnel from outside'))
    else applyOption(call, option)
  }
  const [host, ...command] = operands
  call.node.findings.push(asked('network/ssh', 'works on another machine'))
  if (host !== undefined)
    call.node.findings.push(...addressFindings(call.walk, call.scope, host.replace(/^.*@/, '')))
  if (call.stdin.piped && (call.stdin.from.size > 0 || /[\uFDD0\uFDD1]/.test(call.stdin.text)))
    call.node.findings.push(denied('exfiltration/ssh', 'sends data to another machine'))
  if (command.length > 0) runText(call, command.join(' '))
  return UNKNOWN
}

function judgeSshOption(call: Call, value: string): void {
  if (!SSH_RUNS.test(value)) return
  call.node.findings.push(
    unseen('network/ssh-option', `\`${value.slice(0, 40)}\` runs a command on this machine`),
  )
  runText(call, value.replace(SSH_RUNS, '').trim())
}

const remoteCopy: Handler = (call) => {
  const { options, operands } = parseOptions(
    {
      short: 'cFiJloPSDX',
      effects: { '-S': 'program', '-i': 'read', '-F': 'read', '-o': 'data', '-D': 'program' },
    },
    call.args,
  )
  for (const option of options) {
    applyOption(call, option)
    if (option.name === '-o' && /command/i.test(option.value ?? ''))
      call.node.findings.push(unseen('network/ssh-option', 'runs a command on this machine'))
  }
  call.node.findings.push(asked('network/copy', 'copies files to or from another machine'))
  for (const [index, operand] of operands.entries()) {
    if (/^[^/]*:/.test(operand))
      call.node.findings.push(
        ...addressFindings(call.walk, call.scope, operand.replace(/:.*$/, '').replace(/^.*@/, '')),
      )
    else if (
      touch(call, operand, index === operands.length - 1 ? 'write' : 'read').some(({ rule }) =>
        rule.startsWith('secrets'),
      )
    )
      call.node.findings.push(denied('exfiltration/copy', 'copies credentials to another machine'))
  }
  return UNKNOWN
}

/** SSH programs. */
export const SSH: Readonly<Record<string, Handler>> = {
  ssh,
  slogin: ssh,
  autossh: (call) =>
    ssh({ ...call, args: call.args.filter((arg, index) => arg !== '-M' && call.args[index - 1] !== '-M') }),
  mosh: ssh,
  ...names('scp sftp', remoteCopy),
  ...tools({
    'ssh-keygen ssh-add ssh-copy-id ssh-agent ssh-keyscan': {
      short: 'tbCNfPDI',
      effects: { '-f': 'read', '-D': 'program', '-y': 'ask: prints a key' },
      also: ({ node }) => {
        node.findings.push(asked('secrets/ssh', 'uses ssh keys'))
      },
    },
  }),
}
