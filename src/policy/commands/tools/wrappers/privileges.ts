import { runText, touch } from '../../effects.ts'
import { boxed, denied } from '../../finding.ts'
import { parseOptions } from '../../options.ts'
import { UNKNOWN } from '../../shell/scope.ts'
import type { Handler } from '../../walk.ts'
import { names } from '../tool.ts'
import { runInner, wrapper } from './wrapper.ts'

/** `su -c line user`, `runuser`. */
const su: Handler = (call) => {
  call.node.findings.push(denied(`privilege/${call.name}`, 'acts as another user'))
  const { options, operands } = parseOptions(
    { short: 'csgGwu', long: 'command shell group user', effects: {} },
    call.args,
  )
  const line = options.find(({ name }) => name === '-c' || name.startsWith('--comm'))?.value
  if (line !== undefined) runText(call, line)
  else if (options.some(({ name }) => name === '-u')) runInner(call, operands, false)
  return UNKNOWN
}

const capsh: Handler = (call) => {
  call.node.findings.push(denied('privilege/capsh', 'changes capabilities'))
  const at = call.args.indexOf('-c')
  if (at !== -1) runText(call, call.args[at + 1] ?? '')
  return UNKNOWN
}

/** Without operands `mount` lists what is mounted. */
const mount: Handler = (call) => {
  const lists = call.args.every((arg) =>
    /^(-l|-v|--show-labels|--verbose|--version|--help|-t|\w*fs\d?|ext\d)$/.test(arg),
  )
  call.node.findings.push(
    lists
      ? boxed('system/mounts', 'lists what is mounted')
      : denied('privilege/mount', 'changes what is mounted'),
  )
  for (const arg of call.args) if (arg[0] === '/') touch(call, arg, 'write')
  return UNKNOWN
}

/** Programs that start another one with other rights, as somebody else, or behind other walls. */
export const PRIVILEGES: Readonly<Record<string, Handler>> = {
  ...names('su runuser', su),
  capsh,
  mount,
  sudo: wrapper({
    short: 'ugCcDhpRrtTU',
    long: 'user group host prompt chdir chroot close-from role type',
    assigns: true,
    deny: 'runs with raised privileges',
  }),
  doas: wrapper({ short: 'uC', deny: 'runs with raised privileges' }),
  pkexec: wrapper({ long: 'user', deny: 'runs with raised privileges' }),
  run0: wrapper({ short: 'ugD', long: 'user group', deny: 'runs with raised privileges' }),
  gksudo: wrapper({ short: 'u', deny: 'runs with raised privileges' }),
  please: wrapper({ deny: 'runs with raised privileges' }),
  chroot: wrapper({ long: 'userspec groups', skip: 1, deny: 'changes the root directory' }),
  unshare: wrapper({
    short: 'SGRw',
    long: 'setuid setgid root wd map-user map-group',
    deny: 'creates namespaces',
  }),
  nsenter: wrapper({
    short: 'tSGrw',
    long: 'target setuid setgid root wd',
    deny: 'enters namespaces of another process',
  }),
  bwrap: wrapper({ deny: 'creates another sandbox' }),
  'systemd-run': wrapper({
    short: 'puMHtE',
    long: 'unit property slice uid gid setenv working-directory on-calendar',
    deny: 'starts a service outside this session',
  }),
  'systemd-nspawn': wrapper({ short: 'DMu', deny: 'starts a container' }),
  runc: wrapper({ deny: 'starts containers directly' }),
  crun: wrapper({ deny: 'starts containers directly' }),
  runsc: wrapper({ deny: 'starts containers directly' }),
  proot: wrapper({ short: 'rbwRS', ask: 'changes how paths are resolved' }),
}
