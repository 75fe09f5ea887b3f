import { SandboxError } from '../model/errors.ts'
import type { EventSink } from '../model/event.ts'
import { listNodes, type NodeRow, type NodeSchedule, removeNode, scheduleNode } from '../store/nodes.ts'
import type { Store } from '../store/sql.ts'
import { countVolumes, forgetArchivesOn } from '../store/volumes.ts'
import { settleLostNode } from './lost-node.ts'

/** What the operator does with nodes. */
export class NodeAdmin {
  readonly #store: Store
  readonly #trail: EventSink

  constructor(store: Store, trail: EventSink) {
    this.#store = store
    this.#trail = trail
  }

  list(): Promise<readonly NodeRow[]> {
    return listNodes(this.#store)
  }

  /** How many volumes each node has. */
  volumes(): Promise<ReadonlyMap<string, number>> {
    return countVolumes(this.#store)
  }

  async find(idOrName: string): Promise<NodeRow> {
    const all = await this.list()
    const byId = all.find(({ id }) => id === idOrName)
    const named = all.filter(({ name }) => name === idOrName)
    if (!byId && named.length > 1)
      throw new SandboxError('conflict', `several nodes have the name \`${idOrName.slice(0, 64)}\``, {
        hint: 'use the id; see `ringfence node ls`',
      })
    const found = byId ?? named[0]
    if (found) return found
    throw new SandboxError('not-found', `no such node \`${idOrName.slice(0, 64)}\``, {
      hint: 'see `ringfence node ls`',
    })
  }

  /** Sets whether a node takes new sandboxes. */
  async schedule(idOrName: string, schedule: NodeSchedule): Promise<NodeRow> {
    const node = await this.find(idOrName)
    await this.#trail.append({ event: 'Node', node: node.id, name: node.name, schedule })
    await this.#store.write((tx) => scheduleNode(tx, node.id, schedule))
    return { ...node, schedule }
  }

  /** Forgets a node that does not run any more, and ends the paused sandboxes whose files it had. */
  async remove(idOrName: string): Promise<NodeRow> {
    const node = await this.find(idOrName)
    if (node.state === 'up')
      throw new SandboxError('wrong-state', `node ${node.name} runs`, { hint: 'stop it first' })
    await settleLostNode({ store: this.#store, trail: this.#trail }, node, 'with its files')
    // An older program did not count how often its volumes were opened for writing.
    if (!node.facts.marksVolumes) await this.#store.write((tx) => forgetArchivesOn(tx, node.id))
    await this.#trail.append({ event: 'Node', node: node.id, name: node.name, state: 'removed' })
    if (!(await this.#store.write((tx) => removeNode(tx, node.id))))
      throw new SandboxError('conflict', `node ${node.name} runs again`, { hint: 'stop it first' })
    return node
  }
}
