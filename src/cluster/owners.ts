import { findApproval } from '../store/approvals.ts'
import { findSandbox } from '../store/sandboxes.ts'
import type { Store } from '../store/sql.ts'
import { isEnded } from '../supervisor/lifecycle/lifecycle.ts'

/** Which node something belongs to. */
export type Owner = {
  readonly node: string
  readonly isEnded: boolean
  /** Why it has ended. */
  readonly reason?: string | null
}

const MOST = 50_000

/** Finds the owners of sandboxes and approvals; those of live sandboxes are remembered until they prove wrong. */
export class Owners {
  readonly #store: Store
  readonly #known = new Map<string, string>()

  constructor(store: Store) {
    this.#store = store
  }

  async ofSandbox(id: string): Promise<Owner | undefined> {
    const known = this.#known.get(id)
    if (known !== undefined) return { node: known, isEnded: false }
    const row = await findSandbox(this.#store, id)
    if (!row) return undefined
    const owner = { node: row.instance, isEnded: isEnded(row.state), reason: row.reason }
    if (!owner.isEnded) this.#remember(id, owner.node)
    return owner
  }

  async ofApproval(id: string): Promise<Owner | undefined> {
    const row = await findApproval(this.#store, id)
    return row && { node: row.instance, isEnded: row.state !== 'pending' }
  }

  /** The owner was another one. */
  forget(id: string): void {
    this.#known.delete(id)
  }

  /** Everything of a node may be elsewhere now. */
  forgetNode(node: string): void {
    for (const [id, owner] of this.#known) if (owner === node) this.#known.delete(id)
  }

  #remember(id: string, node: string): void {
    if (this.#known.size >= MOST) this.#known.delete(this.#known.keys().next().value as string)
    this.#known.set(id, node)
  }
}
