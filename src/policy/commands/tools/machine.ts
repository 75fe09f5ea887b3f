import { asked, boxed, denied } from '../finding.ts'
import type { Call, Handler } from '../walk.ts'
import { MACHINE_TABLES } from './option-tables.ts'
import { tools } from './tool.ts'

const endless = (call: Call, reason: string): void => {
  call.node.findings.push(boxed('resource/endless', reason))
}

/** The field widths of a format: `%2000000000d` prints two gigabytes. */
export function wideFormat(call: Call, formats: readonly string[]): void {
  if (formats.some((format) => /%[^a-zA-Z%]*(\d{4}|\*)/.test(format)))
    endless(call, 'a format prints too much')
}

/** Programs that show information about the machine. */
export const MACHINE: Readonly<Record<string, Handler>> = tools(
  {
    'whoami logname tty arch nproc uname uptime lscpu locale cal groups id getconf pidof which': {},
    'users free lsb_release sw_vers ncal factor expr numfmt type printenv who w last vmstat iostat hostid dircolors whatis apropos':
      {},
    'true false : pwd [[': {},
    echo: {},
    'basename dirname pathchk': {},
    whereis: {},
    tput: {
      also: (call, { operands }) => {
        // `init` and `reset` start programs named in the terminal description.
        if (!/^(cols|lines|colors|bold|sgr0|smul|rmul|rev|el|setaf|setab)$/.test(operands[0] ?? ''))
          call.node.findings.push(boxed('programs/terminal', 'sets up the terminal'))
      },
    },
    date: {
      effects: {
        '-s': 'ask: sets the clock',
        '--set': 'ask: sets the clock',
        '-f': 'read',
        '--file': 'read',
        '-r': 'read',
        '--reference': 'read',
      },
      also: (call, { operands }) => {
        if (operands.some((operand) => operand[0] !== '+'))
          call.node.findings.push(asked('date/option', 'sets the clock'))
        wideFormat(call, operands)
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
    ps: { also: processes },
    format: {
      // On other systems than Windows a program of this name formats source code.
      also: ({ node, args }) => {
        if (args.some((arg) => /^[a-z]:|^\/dev\//i.test(arg)))
          node.findings.push(denied('destructive/disk', 'formats a disk'))
      },
    },
    pgrep: { effects: { '-F': 'read', '--pidfile': 'read' } },
    'top htop lsof fuser ss netstat pstree': {
      short: 'opuUgGtCnPsFdbw',
      effects: { '-k': 'ask: ends processes' },
    },
    'man info': {
      short: 'SseLMrmERC',
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
      operands: 'read',
      also: (call, { operands }) => {
        if (operands.some((operand) => operand.includes('/')))
          call.node.findings.push(boxed('programs/page', 'formats a page from a file'))
      },
    },
  },
  MACHINE_TABLES,
)

const PS_OPTION =
  /^(-?[aAdefFhHjlLmNrSTuvwxyZcG]+|-[opCuUgGtqs]|--(forest|headers|no-headers|sort(=.*)?|pid|ppid|user|group|cols|width))$/

/** `ps` mixes three styles of options; it opens none of the files it is given. */
function processes({ node, args }: Call): void {
  if (args.some((arg) => /^[a-z]*e[a-z]*$|^-\w*E/.test(arg)))
    node.findings.push(boxed('secrets/environment', 'prints environment variables'))
  const options = args.filter(
    (_, index) => !/^-?[opCuUgGtqks]$|^--(sort|pid|ppid|user|group)$/.test(args[index - 1] ?? ''),
  )
  if (
    !options.every(
      (arg) => PS_OPTION.test(arg) || /^-?[opCuUgGtqk][\w,.=%:+-]+$/.test(arg) || /^[\d,]+$/.test(arg),
    )
  )
    node.findings.push(boxed('programs/option', 'has an option that is not known here'))
}
