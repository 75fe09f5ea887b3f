import { homedir } from 'node:os'
import type { MicrovmParts } from '../../src/backends/microvm/backend.ts'
import type { Guarantee } from '../../src/model/guarantee.ts'

/**
 * Deliberate damage to the launch of a sandbox. The suite must detect every one of these.
 * A launch vector is a flat list: `arg X` gives X to bubblewrap, `init X` gives X to the agent.
 */
export type Sabotage = {
  readonly name: string
  readonly breaks: readonly Guarantee[]
  readonly sabotage: (vector: readonly string[]) => readonly string[]
}

/** Removes `key value` pairs from the vector. */
const without =
  (key: string, ...values: readonly string[]) =>
  (vector: readonly string[]): readonly string[] =>
    pairsOf(vector)
      .filter(([name, value]) => !(name === key && values.includes(value ?? '')))
      .flat()

/** Operations with their arguments; only `arg` and `init` matter here, the rest stays whole. */
function pairsOf(vector: readonly string[]): readonly (readonly string[])[] {
  const arity: Readonly<Record<string, number>> = {
    bwrap: 1,
    control: 1,
    cgroup: 1,
    bind: 5,
    arg: 1,
    file: 2,
    filter: 1,
    init: 1,
    user: 2,
  }
  const out: string[][] = []
  for (let at = 0; at < vector.length; ) {
    const size = 1 + (arity[vector[at] as string] ?? 0)
    out.push(vector.slice(at, at + size) as string[])
    at += size
  }
  return out
}

/** Breaks only sandboxes with a workspace, so that the probe still succeeds. */
function isolatingOnlyTheProbe(vector: readonly string[]): readonly string[] {
  return vector.includes('bind') ? withoutField('isolate', 0)(vector) : vector
}

/** Removes a field of the agent together with its arguments. */
const withoutField =
  (field: string, size: number) =>
  (vector: readonly string[]): readonly string[] => {
    const pairs = [...pairsOf(vector)]
    const kept: (readonly string[])[] = []
    for (let at = 0; at < pairs.length; at++) {
      const [name, value] = pairs[at] as readonly string[]
      if (name === 'init' && value === field) at += size
      else kept.push(pairs[at] as readonly string[])
    }
    return kept.flat()
  }

/** Removes lines from a field of the agent that holds a table. */
const withoutLines =
  (field: string, ...values: readonly string[]) =>
  (vector: readonly string[]): readonly string[] => {
    const pairs = pairsOf(vector)
    return pairs.flatMap(([name, value = '', ...rest], at) =>
      name === 'init' && pairs[at - 1]?.[1] === field
        ? [
            name,
            value
              .split('\n')
              .filter((line) => !values.includes(line))
              .join('\n'),
          ]
        : [name as string, ...(value === '' && pairs[at]?.length === 1 ? [] : [value]), ...rest],
    )
  }

const insertArgs =
  (...args: readonly string[]) =>
  (vector: readonly string[]): readonly string[] => {
    const pairs = [...pairsOf(vector)]
    // The root becomes read-only at the end; until then mount points can be made in it.
    const end = pairs.findIndex(([name, value]) => name === 'arg' && value === '--remount-ro')
    const before = end >= 0 ? end : pairs.findIndex(([name]) => name === 'init')
    pairs.splice(before, 0, ...args.map((value) => ['arg', value]))
    return pairs.flat()
  }

const replaced =
  (from: string, to: string) =>
  (vector: readonly string[]): readonly string[] =>
    vector.map((item) => (item === from ? to : item))

/** A filter of one instruction that allows everything. */
const ALLOW_ALL = '06000000' + '0000ff7f'

export const SABOTAGES: readonly Sabotage[] = [
  {
    name: 'commands share their namespaces',
    breaks: ['proc.between'],
    sabotage: isolatingOnlyTheProbe,
  },
  { name: 'the network is shared', breaks: ['net.offline'], sabotage: without('arg', '--unshare-net') },
  {
    name: 'processes are shared',
    breaks: ['proc.hidden'],
    sabotage: (vector) => without('arg', '--unshare-pid', '--as-pid-1')(vector),
  },
  {
    name: 'sockets in mounted directories can be reached',
    breaks: ['ipc.private'],
    sabotage: withoutField('host-mount', 1),
  },
  { name: 'IPC is shared', breaks: ['ipc.private'], sabotage: without('arg', '--unshare-ipc') },
  {
    name: 'the home directory can be read',
    breaks: ['fs.read'],
    sabotage: insertArgs('--ro-bind', homedir(), homedir()),
  },
  {
    name: 'the home directory can be written',
    breaks: ['fs.write'],
    sabotage: (vector) => withoutLandlock(insertArgs('--bind', homedir(), homedir())(vector)),
  },
  {
    name: 'the seccomp filter allows everything',
    breaks: ['kernel.filtered'],
    sabotage: (vector) => vector.map((item, at) => (vector[at - 1] === 'filter' ? ALLOW_ALL : item)),
  },
  {
    name: 'kernel settings are writable',
    breaks: ['fs.write'],
    sabotage: (vector) => withoutLandlock(withoutField('readonly', 1)(vector)),
  },
  { name: 'nobody guards the workspace', breaks: ['fs.protect'], sabotage: withoutField('supervise', 1) },
  {
    name: 'git is not protected',
    breaks: ['fs.protect'],
    sabotage: (vector) => withoutField('protect-inner', 1)(withoutField('protect-root', 1)(vector)),
  },
  {
    name: 'editor files are not protected',
    breaks: ['fs.protect'],
    sabotage: withoutField('protect-name', 1),
  },
  {
    name: 'what git’s settings point to is not protected',
    breaks: ['fs.protect'],
    sabotage: withoutField('protect-path', 1),
  },
  {
    name: 'cgroups are not joined',
    breaks: ['limit.memory', 'limit.pids', 'limit.cpu'],
    sabotage: (vector) =>
      pairsOf(vector)
        .filter(([name]) => name !== 'cgroup')
        .flat(),
  },
  {
    name: 'written bytes are not counted',
    breaks: ['limit.disk'],
    sabotage: (vector) => withoutField('disk', 1)(withoutField('rlimit', 2)(vector)),
  },
  {
    name: "the host's environment goes in",
    breaks: ['env.clean'],
    sabotage: (vector) => [...vector, 'init', 'env', 'init', `RF_SECRET=s3cr3t-canary`],
  },
  {
    name: 'shared memory files are the host’s',
    breaks: ['fs.write'],
    sabotage: insertArgs('--bind', '/dev/shm', '/dev/shm'),
  },
  {
    name: 'the programs are writable',
    breaks: ['fs.write'],
    sabotage: (vector) => withoutLandlock(replaced('--ro-bind', '--bind')(vector)),
  },
  {
    name: 'what agents take for instructions is not protected',
    breaks: ['fs.protect'],
    sabotage: withoutLines('protect-name', 'CLAUDE.md', '.github/workflows'),
  },
]

/** Landlock is the second layer: to test the proof of the first layer, Landlock is disabled too. */
function withoutLandlock(vector: readonly string[]): readonly string[] {
  return [...vector, 'init', 'whole-file-system']
}

/** The same for virtual machines: damage to the configuration of `/init` and of the agent, and to the files copied back. */
export type MachineMutation = {
  readonly name: string
  readonly breaks: readonly Guarantee[]
  readonly parts: Partial<MicrovmParts>
}

/** Removes a field and its values from a flat list. */
const dropped =
  (size: number, ...names: readonly string[]) =>
  (fields: readonly string[]): readonly string[] => {
    const kept: string[] = []
    for (let at = 0; at < fields.length; at++)
      if (names.includes(fields[at] as string)) at += size
      else kept.push(fields[at] as string)
    return kept
  }

/** Without this write the cgroup keeps its default: no limit. */
const unlimited =
  (name: string) =>
  (fields: readonly string[]): readonly string[] =>
    fields.filter((_, at) => fields[at + 1] !== name && fields[at] !== name && fields[at - 1] !== name)

export const MACHINE_SABOTAGES: readonly MachineMutation[] = [
  {
    name: 'commands share their namespaces',
    breaks: ['proc.between'],
    // Breaks only sandboxes with a workspace, so that the probe still succeeds.
    parts: {
      sabotage: {
        config: (fields) => (fields.includes('supervise') ? dropped(0, 'isolate')(fields) : fields),
      },
    },
  },
  {
    name: 'the seccomp filter allows everything',
    breaks: ['kernel.filtered'],
    parts: { sabotage: { filter: Buffer.from(ALLOW_ALL, 'hex') } },
  },
  {
    name: 'nobody guards the workspace, and everything is taken back',
    breaks: ['fs.protect'],
    parts: { sabotage: { config: dropped(1, 'supervise') }, refuses: () => undefined },
  },
  {
    name: 'memory has no limit',
    breaks: ['limit.memory'],
    parts: { sabotage: { containerFields: unlimited('memory.max') } },
  },
  {
    name: 'processes have no limit',
    breaks: ['limit.pids'],
    parts: { sabotage: { containerFields: unlimited('pids.max') } },
  },
  {
    name: "the host's environment goes in",
    breaks: ['env.clean'],
    parts: { sabotage: { config: (fields) => [...fields, 'env', 'RF_SECRET=s3cr3t-canary'] } },
  },
]
