import { monotonicMs } from '../host/clock.ts'
import type { Spec } from '../model/spec.ts'
import type { NodeFacts } from '../store/nodes.ts'
import type { SandboxRow } from '../store/sandboxes.ts'
import { type LostNodeParts, reportLost } from './lost-node.ts'
import type { ClusterNode, NodeRow } from './node.ts'
import { choose, describeRefusals, type Need, type Refusal } from './placement.ts'

/** What finds another node for sandboxes that must leave theirs. */
export type RestartParts = LostNodeParts & {
  readonly node: Pick<ClusterNode, 'id' | 'nodes' | 'refresh'>
  /** What this node has and uses now. */
  readonly facts: () => NodeFacts
  readonly needOf: (spec: Spec) => Need
  /** Asks a node, which may be this one, to take a sandbox over. `gone`: it was not the given owner's any more. */
  readonly ask: (node: NodeRow, row: SandboxRow, options: MoveOptions) => Promise<'taken' | 'gone' | Refusal>
  /** How long a sandbox waits for a node with room. */
  readonly waitMs: number
}

/** Why a sandbox changes its node, and how. */
export type MoveOptions = {
  readonly reason: string
  /** The files that it moves with; absent: those of its last snapshot. */
  readonly snapshot?: string | undefined
  /** A node that it must not go to. */
  readonly except?: string | undefined
}

/** How many sandboxes look for a node at a time. */
const AT_ONCE = 16
const LOOK_MS = 250

/** Brings sandboxes with `restart: true` to other nodes. */
export class Restarts {
  readonly #parts: RestartParts

  constructor(parts: RestartParts) {
    this.#parts = parts
  }

  /** Each one is taken over by a node, or reported as failed when no node takes it in time. Returns how many were taken. */
  async all(rows: readonly SandboxRow[], reason: string): Promise<number> {
    const queue = [...rows]
    let taken = 0
    const work = async (): Promise<void> => {
      for (let row = queue.shift(); row; row = queue.shift()) {
        const refused = await this.one(row, { reason })
        if (refused === undefined) taken++
        else await reportLost(this.#parts, [row], `${reason}; it could not be restarted: ${refused}`)
      }
    }
    await Promise.all(Array.from({ length: Math.min(AT_ONCE, rows.length) }, work))
    return taken
  }

  /** Finds a node for one sandbox; returns why there is none. */
  async one(row: SandboxRow, options: MoveOptions): Promise<string | undefined> {
    const until = monotonicMs() + this.#parts.waitMs
    for (;;) {
      const refused = await this.#try(row, options)
      if (refused === undefined) return undefined
      if (monotonicMs() > until) return describeRefusals(refused)
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS))
      await this.#parts.node.refresh().catch(() => {})
    }
  }

  async #try(row: SandboxRow, options: MoveOptions): Promise<ReadonlyMap<Refusal, number> | undefined> {
    const { node, facts, needOf, ask } = this.#parts
    const spec = JSON.parse(row.spec) as Spec
    // The node that it was created for is the one that it leaves.
    const need = { ...needOf(spec), labels: spec.placement?.labels, backend: row.backend ?? spec.backend }
    const candidates = node.nodes
      .filter(({ id }) => id !== options.except)
      .map((one) => (one.id === node.id ? { ...one, facts: facts() } : one))
    const choice = choose(candidates, need)
    if ('refused' in choice) return choice.refused
    const refused = new Map<Refusal, number>()
    for (const one of choice.nodes) {
      const answer = await ask(one, row, options)
      if (answer === 'taken' || answer === 'gone') return undefined
      refused.set(answer, (refused.get(answer) ?? 0) + 1)
    }
    return refused
  }
}
