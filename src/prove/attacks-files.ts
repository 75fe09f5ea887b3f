import { readlinkSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { type Attack, isRoot, onlyInside, rootOnly, says, stdout } from './attack.ts'
import { contentOf, exists, SECRET } from './world.ts'

const shadowLines = (): readonly string[] =>
  isRoot ? contentOf('/etc/shadow').split('\n').filter(Boolean) : []

/** Reading and writing outside of what is granted. */
export const READS: readonly Attack[] = [
  {
    name: 'read a file outside every grant',
    script: ({ outside }) => outside.map((dir) => `cat ${dir}/secret`).join('\n'),
    succeeded: says(SECRET),
  },
  {
    name: 'read through a symlink planted in the workspace',
    script: ({ outside }) => outside.map((dir, i) => `ln -s ${dir} link${i}; cat link${i}/secret`).join('\n'),
    succeeded: says(SECRET),
  },
  {
    name: 'read through /proc/self/root and /proc/1/root',
    script: ({ outside }) =>
      outside.map((dir) => `cat /proc/self/root${dir}/secret /proc/1/root${dir}/secret`).join('\n'),
    succeeded: says(SECRET),
  },
  {
    name: "read the system's password hashes",
    // A sandbox with users of its own has such a file too; it holds no line of the host's.
    script: () => 'cat /etc/shadow',
    succeeded: (result) => shadowLines().some((line) => stdout(result).includes(line)),
    notApplicable: rootOnly,
  },
  {
    name: 'read keys in their usual directories',
    script: ({ outside }) =>
      outside.map((dir) => `cat ${dir}/.ssh/id_rsa ${dir}/.aws/credentials`).join('\n'),
    succeeded: says(SECRET),
  },
  {
    name: 'link a file from outside into the workspace and read it there',
    script: ({ outside }) => outside.map((dir, i) => `ln ${dir}/secret hard${i} && cat hard${i}`).join('\n'),
    succeeded: says(SECRET),
  },
]

function sameFiles(): string | undefined {
  try {
    if (readlinkSync('/proc/1/ns/mnt') === readlinkSync('/proc/self/ns/mnt')) return undefined
  } catch {
    // A container in which not even root may look.
  }
  return 'the first process of this machine sees other files than we do'
}

/** Attacks on `fs.write`. */
export const WRITES: readonly Attack[] = [
  {
    name: 'create a file outside every grant',
    script: ({ outside }) => outside.map((dir) => `echo x > ${dir}/planted`).join('\n'),
    succeeded: (_, { outside }) => outside.some((dir) => exists(join(dir, 'planted'))),
  },
  {
    name: 'write through a symlink planted in the workspace',
    script: ({ outside }) =>
      outside.map((dir, i) => `ln -s ${dir}/linked out${i}; echo x > out${i}`).join('\n'),
    succeeded: (_, { outside }) => outside.some((dir) => exists(join(dir, 'linked'))),
  },
  {
    name: 'write through /proc/self/root',
    script: ({ outside }) => outside.map((dir) => `echo x > /proc/self/root${dir}/proc`).join('\n'),
    succeeded: (_, { outside }) => outside.some((dir) => exists(join(dir, 'proc'))),
  },
  {
    name: 'write a kernel setting (its current value)',
    script: () =>
      'cat /proc/sys/kernel/core_pattern > v && cat v > /proc/sys/kernel/core_pattern && echo got-it',
    succeeded: says('got-it'),
    notApplicable: rootOnly,
  },
  {
    name: 'open /proc/sysrq-trigger',
    script: () => 'exec 9>>/proc/sysrq-trigger && echo got-it',
    succeeded: says('got-it'),
    notApplicable: () => (exists('/proc/sysrq-trigger') ? rootOnly() : 'this kernel has none'),
  },
  {
    name: 'write to a program directory',
    // Seen from the host: in a writable root the sandbox has such a directory of its own.
    script: (world) => `touch /usr/local/rf-${world.port}`,
    succeeded: (_, world) => {
      const path = `/usr/local/rf-${world.port}`
      const isThere = exists(path)
      rmSync(path, { force: true })
      return isThere
    },
    notApplicable: rootOnly,
  },
  {
    name: 'append to a shell start-up file outside the sandbox',
    script: ({ outside }) => outside.map((dir) => `echo PWNED >> ${dir}/.bashrc`).join('\n'),
    succeeded: (_, { outside }) => outside.some((dir) => contentOf(join(dir, '.bashrc')).includes('PWNED')),
  },
  {
    name: 'link a file from outside into the workspace and write it there',
    script: ({ outside }) =>
      outside.map((dir, i) => `ln ${dir}/.bashrc rc${i} && echo LINKED >> rc${i}`).join('\n'),
    succeeded: (_, { outside }) => outside.some((dir) => contentOf(join(dir, '.bashrc')).includes('LINKED')),
  },
  {
    name: 'write through /proc/1/root',
    script: ({ outside }) => outside.map((dir) => `echo x > /proc/1/root${dir}/first`).join('\n'),
    succeeded: (_, { outside }) => outside.some((dir) => exists(join(dir, 'first'))),
    notApplicable: () => rootOnly() ?? sameFiles(),
  },
  {
    name: 'create a cgroup',
    script: ({ port }) =>
      `for d in /sys/fs/cgroup /sys/fs/cgroup/pids; do mkdir $d/rf-${port} && echo got-it; rmdir $d/rf-${port}; done`,
    succeeded: says('got-it'),
    notApplicable: rootOnly,
  },
  {
    name: 'set the release_agent of a cgroup',
    script: () =>
      'for f in /sys/fs/cgroup/*/release_agent /sys/fs/cgroup/release_agent; do : >> $f && echo got-it; done',
    succeeded: says('got-it'),
    notApplicable: () =>
      rootOnly() ??
      (exists('/sys/fs/cgroup/pids/release_agent') ? undefined : 'control groups of version 2 have none'),
  },
  {
    name: "write to the executable of the sandbox's PID 1",
    script: () => 'for p in 1 $PPID; do : >> /proc/$p/exe && echo got-it; done',
    succeeded: says('got-it'),
    notApplicable: onlyInside('native has no such process'),
  },
  {
    // Nobody may write to a program that runs; so it is held open, ended, and written to afterwards.
    name: 'open the executable of a host process through /proc/…/exe and write to it',
    script: ({ runner: { pid } }) =>
      `exec 9< /proc/${pid}/exe; kill -9 ${pid}; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; echo PWNED >> /proc/self/fd/9 && break; done`,
    succeeded: (_, { runner: { file } }) => contentOf(file).includes('PWNED'),
  },
]

/** Attacks on `env.clean`. */
export const ENVIRONMENT: readonly Attack[] = [
  { name: "read the host's variables", script: () => 'env; cat /proc/self/environ', succeeded: says(SECRET) },
  {
    name: "read every process's variables",
    script: () => 'cat /proc/[0-9]*/environ',
    succeeded: says(SECRET),
  },
]
