import { release } from 'node:os'
import { type Attack, isRoot, onlyInside, rootOnly, says, stdout, unlessProbed, x64Only } from './attack.ts'
import { contentOf, exists, SECRET } from './world.ts'

/** Other processes and the kernel itself. */

/** A descriptor that a command was not given leads to what it was not given. */
const LEAKS: Attack = {
  name: 'use a leaked file descriptor',
  script: () => 'ls /proc/$$/fd; true',
  succeeded: (result) =>
    stdout(result)
      .split('\n')
      .some((fd) => Number(fd) > 2),
  notApplicable: onlyInside('native leaks no descriptors either'),
}

/** Attacks on `proc.hidden`. */
export const PROCESSES: readonly Attack[] = [
  {
    name: 'see a host process',
    script: ({ pid }) => `grep -q sleep /proc/${pid}/comm && echo got-it`,
    succeeded: says('got-it'),
  },
  {
    name: 'signal a host process',
    script: ({ pid }) => `kill -0 ${pid} && echo got-it`,
    succeeded: says('got-it'),
  },
  {
    name: 'read the environment of a host process',
    script: ({ pid }) => `tr '\\0' '\\n' < /proc/${pid}/environ`,
    succeeded: says(SECRET),
  },
  {
    name: 'trace a host process',
    script: ({ probe, pid }) => `${probe} trace ${pid}`,
    succeeded: says('yes'),
    notApplicable: rootOnly,
  },
  {
    name: 'trace PID 1 of the sandbox and the reaper of the command',
    script: ({ probe }) => `${probe} trace 1; ${probe} trace $PPID`,
    succeeded: says('yes'),
    notApplicable: onlyInside('on native, PID 1 is the init process of the host'),
  },
  {
    name: 'open the memory, environment and descriptors of PID 1 and the reaper',
    script: () =>
      'for p in 1 $PPID; do exec 7<>/proc/$p/mem && echo got-it; [ -n "$(tr -d "\\0" < /proc/$p/environ)" ] && echo got-it; for f in 3 4 5 100 101 102; do (exec 8<>/proc/$p/fd/$f) && echo got-it; done; done',
    succeeded: says('got-it'),
    notApplicable: onlyInside('on native, PID 1 is the init process of the host'),
  },
  LEAKS,
]

const hasPython = (): string | undefined =>
  exists('/usr/bin/python3') || exists('/usr/local/bin/python3')
    ? undefined
    : 'no program here to hold such a socket'

/** Attacks on `ipc.private`. */
export const IPC: readonly Attack[] = [
  { name: 'read shared memory', script: ({ probe, shm }) => `${probe} shm ${shm}`, succeeded: says(SECRET) },
  {
    name: 'connect to an abstract socket',
    script: ({ probe, abstract }) => `${probe} abstract ${abstract}`,
    succeeded: says('yes'),
    notApplicable: hasPython,
  },
  {
    name: 'type into a terminal',
    script: ({ probe }) => `${probe} tiocsti`,
    succeeded: says('yes'),
    notApplicable: () =>
      contentOf('/proc/sys/dev/tty/legacy_tiocsti').trim() === '0'
        ? 'this kernel has switched it off for all'
        : undefined,
  },
  {
    name: 'connect to a Unix socket by path',
    script: ({ probe, outside }) => outside.map((dir) => `${probe} unix ${dir}/sock`).join('\n'),
    succeeded: says('yes'),
  },
  {
    name: 'connect to a Unix socket of the host in the workspace',
    script: ({ probe }) =>
      [
        `${probe} unix host-sock`,
        `ln -s host-sock link && ${probe} unix link`,
        `ln host-sock hard && ${probe} unix hard`,
        `mkdir d && mv host-sock d/moved && ${probe} unix d/moved; cd d && ${probe} unix moved`,
      ].join('\n'),
    succeeded: says('yes'),
  },
  {
    name: 'connect to it while another thread changes the address and the descriptor',
    script: ({ probe }) => `${probe} unix-race host-sock`,
    succeeded: says('yes'),
  },
  {
    name: 'send a datagram to a Unix socket of the host in the workspace',
    script: ({ probe }) => `${probe} unix-datagram host-datagram.sock`,
    succeeded: says('yes'),
    notApplicable: hasPython,
  },
]

const syscall = (call: string, notApplicable?: Attack['notApplicable']): Attack => ({
  name: `call ${call}`,
  script: ({ probe }) => `${probe} call ${call}`,
  succeeded: says('yes'),
  ...(notApplicable ? { notApplicable } : {}),
})

/** Attacks on `kernel.filtered`. */
export const KERNEL: readonly Attack[] = [
  syscall('i386', x64Only),
  syscall('x32', () => 'this kernel is built without x32'),
  syscall('unshare-user'),
  syscall('clone-user'),
  syscall('clone3-user'),
  syscall('mount', rootOnly),
  syscall('open_tree', rootOnly),
  syscall('userfaultfd'),
  syscall('perf', () =>
    Number(contentOf('/proc/sys/kernel/perf_event_paranoid')) > 2 && !isRoot
      ? 'this kernel forbids it to users'
      : undefined,
  ),
  syscall('io_uring', () =>
    contentOf('/proc/sys/kernel/io_uring_disabled').trim() === '2'
      ? 'this kernel has switched it off'
      : undefined,
  ),
  syscall('bpf', rootOnly),
  syscall('key'),
  syscall('clock', rootOnly),
  syscall('keyring', unlessProbed('call', 'keyring')),
  syscall('unshare-net'),
  syscall('handle', unlessProbed('call', 'handle')),
  syscall('syslog', unlessProbed('call', 'syslog')),
  syscall('hostname', rootOnly),
  syscall('umount', onlyInside('it would break the host')),
  syscall('pivot_root', onlyInside('it would break the host')),
]

/** What only the host's own kernel knows. */
export const OTHER_KERNEL: readonly Attack[] = [
  {
    name: "read the kernel's name",
    script: () => 'uname -r; cat /proc/version /proc/sys/kernel/osrelease',
    succeeded: (result) => stdout(result).includes(release()),
  },
  {
    name: 'read the boot time of the host',
    script: () => 'cat /proc/sys/kernel/random/boot_id; grep btime /proc/stat',
    succeeded: (result) => stdout(result).includes(contentOf('/proc/sys/kernel/random/boot_id').trim()),
  },
  {
    name: "read the kernel's configuration",
    script: () => 'cat /proc/modules /proc/kallsyms /proc/slabinfo | head -c 100000 | wc -c',
    succeeded: (result) => Number(stdout(result)) > 1000,
    notApplicable: rootOnly,
  },
]
