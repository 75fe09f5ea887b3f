import type { Backend } from '../../backends/backend.ts'
import type { ContainedRule, Decision } from '../../model/decision.ts'
import type { Plan } from '../../model/plan.ts'
import { visible } from '../../model/text/visible.ts'

const NETWORK: Readonly<Record<string, string>> = {
  offline: 'none; private loopback',
  loopback: 'private loopback only',
  fetch: 'allowlisted hosts through the proxy',
  full: "the host's own network, unfiltered",
}

const UNITS: readonly (readonly [keyof Plan['limits'], (value: number) => string])[] = [
  ['cpus', (value) => `${value} CPUs`],
  ['memoryMb', (value) => `${value} MB of memory`],
  ['diskMb', (value) => `${value} MB written to disk`],
  ['pids', (value) => `${value} processes`],
  ['wallMs', (value) => `${value / 1000} s`],
  ['idleMs', (value) => `${value / 1000} s without output`],
  ['outputBytes', (value) => `${value} bytes of output`],
]

/** A plan as text for people. */
export function explain(
  plan: Plan,
  backend: Backend,
  decision: Decision,
  command: string | readonly string[],
): string {
  const shown = typeof command === 'string' ? command : command.join(' ')
  const limits = UNITS.flatMap(([name, words]) =>
    plan.limits[name] === undefined ? [] : [words(plan.limits[name])],
  )
  const rows: readonly (readonly [string, readonly string[]])[] = [
    ['command', [shown]],
    ['decision', [`${decision.action}: ${decision.reason}`]],
    ['contained', (decision.contained ?? []).map(containedText)],
    ['backend', [`${backend.name} (${backend.level})`]],
    ['starts in', [plan.cwd]],
    [
      'can write',
      plan.mounts
        .filter((mount) => mount.mode === 'rw')
        .map((mount) => shownMount(mount.real, mount.target))
        .concat('/tmp (private)'),
    ],
    [
      'can read',
      [
        'system programs and libraries',
        ...plan.mounts
          .filter((mount) => mount.mode === 'ro')
          .map((mount) => shownMount(mount.real, mount.target)),
      ],
    ],
    ['cannot see', plan.masks.map((mask) => mask.target)],
    [
      'cannot change',
      plan.protection ? ['git hooks and configuration, editor, shell and agent start-up files'] : [],
    ],
    ['network', [NETWORK[plan.network.mode] ?? plan.network.mode]],
    ['sockets', plan.unixSockets.map((socket) => socket.real)],
    ['environment', [Object.keys(plan.env).join(' ')]],
    ['limits', [limits.join(', ')]],
    ['runs as', plan.runAs ? [runsAs(plan.runAs.uid, plan.mounts.length > 0)] : []],
    ['needs', [plan.needs.join(' ')]],
    ['waived', plan.waived.length > 0 ? [plan.waived.join(' ')] : []],
  ]
  return rows
    .filter(([, lines]) => lines.length > 0 && lines[0] !== '')
    .map(([name, lines]) => `${name.padEnd(14)} ${lines.map(visible).join(`\n${' '.repeat(15)}`)}`)
    .join('\n')
}

const runsAs = (uid: number, hasMounts: boolean): string =>
  `user ${uid}, ${hasMounts ? 'who owns the workspace' : 'who has no rights on the host'}`

const containedText = ({ rule, action, by }: ContainedRule): string =>
  `${rule} (${action} on the host): ${Object.entries(by)
    .map(([risk, guarantee]) => `${risk} by ${guarantee}`)
    .join(', ')}`

const shownMount = (source: string, target: string): string =>
  source === target ? target : `${target} (from ${source})`
