import type { NodeInfo } from '../../client/types.ts'
import { visible } from '../../model/text/visible.ts'
import { parseOptions, usage } from '../options/options.ts'
import { err } from '../terminal/output.ts'
import { print, server, table } from './remote.ts'

type Verb = 'cordon' | 'drain' | 'uncordon'

const VERBS: readonly string[] = ['cordon', 'drain', 'uncordon']

/** `ringfence node ls|cordon|drain|uncordon|rm`, against a server of the cluster. */
export async function node(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('node', args, { wait: { type: 'string' } })
  const [action, ...names] = positionals
  if (action === 'ls') return list(values.json)
  if (action !== 'rm' && !VERBS.includes(action ?? ''))
    throw usage(
      'node',
      `${action === undefined ? 'missing action' : `unknown action \`${action}\``}: ls, cordon, drain, uncordon, rm`,
    )
  const waitSecs = values.wait === undefined ? undefined : Number(values.wait)
  if (waitSecs !== undefined && !(waitSecs >= 0 && action === 'drain'))
    throw usage('node', '--wait needs a number of seconds, and `drain`')
  if (names.length === 0) throw usage('node', `missing node: \`node ${action} NAME…\``)
  const client = server()
  const changed: NodeInfo[] = []
  for (const name of names)
    changed.push(
      action === 'rm' ? await client.removeNode(name) : await client.scheduleNode(name, action as Verb),
    )
  print(values.json, changed, () =>
    changed.map((one) => `${visible(one.name)}: ${action === 'rm' ? 'removed' : one.schedule}\n`).join(''),
  )
  return waitSecs === undefined ? 0 : waitUntilEmpty(changed, waitSecs)
}

const LOOK_MS = 500

/** Waits until the nodes have no sandboxes and no volumes any more. */
async function waitUntilEmpty(drained: readonly NodeInfo[], secs: number): Promise<number> {
  const until = performance.now() + secs * 1000
  for (;;) {
    const { items } = await server().nodes()
    const left = items.filter(
      ({ id, state, used, volumes }) =>
        state === 'up' && used.sandboxes + volumes > 0 && drained.some((one) => one.id === id),
    )
    if (left.length === 0) return 0
    if (performance.now() > until) {
      const each = left
        .map(
          ({ name, used, volumes }) => `${visible(name)} has ${used.sandboxes} sandboxes, ${volumes} volumes`,
        )
        .join('; ')
      err(`not empty after ${secs} s: ${each}; wait longer, or stop the node, which ends its sandboxes\n`)
      for (const { id, why } of left.flatMap(({ staying }) => staying))
        err(`  ${visible(id)} stays: ${visible(why)}\n`)
      return 1
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS))
  }
}

async function list(json: boolean | undefined): Promise<number> {
  const page = await server().nodes()
  print(json, page, () =>
    page.items.length === 0
      ? 'this server is not a node of a cluster\n'
      : table([
          ['ID', 'NAME', 'ROLE', 'STATE', 'TAKES NEW', 'SANDBOXES', 'CPU', 'MEMORY', 'VERSION', 'LEASE'],
          ...page.items.map(row),
        ]),
  )
  return 0
}

const percent = (used: number, all: number): string => `${all > 0 ? Math.round((100 * used) / all) : 0} %`

const takesNew = ({ role, state, schedule }: Pick<NodeInfo, 'role' | 'state' | 'schedule'>): string => {
  if (role === 'api' || state !== 'up') return 'no'
  return schedule === 'open' ? 'yes' : schedule
}

const row = ({ capacity, used, ...one }: NodeInfo): readonly string[] => [
  one.id,
  `${one.name}${one.self ? ' *' : ''}`,
  one.role,
  one.failing && one.state === 'up' ? 'up, failing' : one.state,
  takesNew(one),
  one.state === 'up' ? `${used.sandboxes}/${capacity.sandboxes}` : '',
  percent(used.cpus, capacity.cpus),
  percent(used.memory_mb, capacity.memory_mb),
  one.version,
  one.lease_left_ms === null ? '' : `${(one.lease_left_ms / 1000).toFixed(1)} s left`,
]
