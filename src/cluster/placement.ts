import type { NodeFacts, NodeRow } from '../store/nodes.ts'

/** Which node a new sandbox goes to. Pure: the simulation runs the same code. */

/** What one sandbox takes of a node. */
export type Need = {
  readonly cpus: number
  readonly memoryMb: number
  readonly diskMb: number
  readonly backend?: string | undefined
  /** Labels that the node must have. */
  readonly labels?: Readonly<Record<string, string>> | undefined
  /** The only node that fits, by id or name. */
  readonly node?: string | undefined
}

/** A node as placement sees it. */
export type Candidate = Pick<NodeRow, 'id' | 'name' | 'state' | 'schedule' | 'role'> & {
  readonly facts: NodeFacts
}

/** Why a node does not fit. */
export type Refusal =
  | 'lost'
  | 'role'
  | 'cordoned'
  | 'failing'
  | 'node'
  | 'backend'
  | 'labels'
  | 'cpu'
  | 'memory'
  | 'disk'
  | 'slots'

/** After so many creates that failed in a row a node gets no more until it has rested. */
const FAILURES = 3
/** How many nodes that fit are compared. */
const COMPARED = 3
/** How many nodes are tried at random before all of them are searched. */
const PROBES = 24

/** Why a sandbox does not fit on a node now; undefined if it does. */
export function refusalOf(
  { state, schedule, role, id, name, facts }: Candidate,
  need: Need,
): Refusal | undefined {
  if (state !== 'up') return 'lost'
  if (role === 'api') return 'role'
  if (need.node !== undefined && need.node !== id && need.node !== name) return 'node'
  if (schedule !== 'open') return 'cordoned'
  if (facts.failures >= FAILURES) return 'failing'
  if (need.backend !== undefined && !facts.backends.includes(need.backend)) return 'backend'
  if (Object.entries(need.labels ?? {}).some(([label, value]) => facts.labels[label] !== value))
    return 'labels'
  return shortageOf(facts, need)
}

/** What a node has too little of. */
export function shortageOf(facts: NodeFacts, need: Need): Refusal | undefined {
  const { used } = facts
  if (used.sandboxes + 1 > facts.sandboxes) return 'slots'
  if (used.cpus + need.cpus > facts.cpus) return 'cpu'
  if (used.memoryMb + need.memoryMb > facts.memoryMb) return 'memory'
  return used.diskMb + need.diskMb > facts.diskMb ? 'disk' : undefined
}

/** How full a node would be, by what it would have least of. */
function fullness({ facts }: Candidate, need: Need): number {
  const { used } = facts
  return Math.max(
    (used.cpus + need.cpus) / facts.cpus,
    (used.memoryMb + need.memoryMb) / facts.memoryMb,
    (used.diskMb + need.diskMb) / Math.max(1, facts.diskMb),
    (used.sandboxes + 1) / facts.sandboxes,
  )
}

/** Nodes for a sandbox, the best first; or why there is none, counted by reason. */
export type Choice<C> =
  | { readonly nodes: readonly [C, ...C[]] }
  | { readonly refused: ReadonlyMap<Refusal, number> }

/**
 * The best of a few nodes that fit. Random ones are tried first, so that the cost depends on the few that are compared; only
 * where most of the fleet does not fit, all of it is searched.
 */
export function choose<C extends Candidate>(
  nodes: readonly C[],
  need: Need,
  random: () => number = Math.random,
): Choice<C> {
  const found = probed(nodes, need, random)
  const fitting = found.length > 0 ? found : nodes.filter((node) => refusalOf(node, need) === undefined)
  const [best, ...others] = fitting
    .map((node) => ({ node, full: fullness(node, need) }))
    .sort((a, b) => a.full - b.full)
    .slice(0, COMPARED)
    .map(({ node }) => node)
  return best ? { nodes: [best, ...others] } : { refused: refusalsOf(nodes, need) }
}

function probed<C extends Candidate>(nodes: readonly C[], need: Need, random: () => number): C[] {
  // Of a few nodes all are compared.
  if (nodes.length <= PROBES) return []
  const found = new Set<C>()
  for (let probe = 0; probe < PROBES && found.size < COMPARED; probe++) {
    const node = nodes[Math.floor(random() * nodes.length)] as C
    if (refusalOf(node, need) === undefined) found.add(node)
  }
  return [...found]
}

function refusalsOf(nodes: readonly Candidate[], need: Need): ReadonlyMap<Refusal, number> {
  const counts = new Map<Refusal, number>()
  for (const node of nodes) {
    const why = refusalOf(node, need)
    if (why) counts.set(why, (counts.get(why) ?? 0) + 1)
  }
  return counts
}

const WORDS: Readonly<Record<Refusal, string>> = {
  lost: 'lost or stopped',
  role: 'run no sandboxes',
  cordoned: 'take no new sandboxes',
  failing: 'rest after failed creates',
  node: 'another node was asked for',
  backend: 'without the backend',
  labels: 'without the labels',
  cpu: 'without enough processors',
  memory: 'without enough memory',
  disk: 'without enough disk',
  slots: 'at their number of sandboxes',
}

/** Refusals that pass by themselves: it helps to wait. */
const PASSING: readonly Refusal[] = ['cpu', 'memory', 'disk', 'slots', 'failing']

/** Whether waiting may help. */
export const mayPass = (refused: ReadonlyMap<Refusal, number>): boolean =>
  PASSING.some((why) => refused.has(why))

/** The refusals as one sentence. */
export const describeRefusals = (refused: ReadonlyMap<Refusal, number>): string =>
  [...refused].map(([why, count]) => `${count} ${WORDS[why]}`).join(', ') || 'there are no nodes'
