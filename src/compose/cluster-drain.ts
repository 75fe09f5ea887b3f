import type { Restarts } from '../cluster/restarts.ts'
import { monotonicMs } from '../host/clock.ts'
import type { ServerParts } from '../server/parts.ts'
import type { LiveSandbox } from '../supervisor/live-sandbox.ts'
import type { OpenSandbox } from '../supervisor/open-sandbox.ts'
import type { Membership } from './serve-cluster.ts'

/** How many sandboxes move at a time. */
const AT_ONCE = 4
/** When to try again with one that could not move. */
const AGAIN_MS = 30_000

/** Moves sandboxes away from a node that drains: paused ones, and those that agreed to it with `restart: true`. */
export class Drain {
  readonly #membership: Membership
  readonly #parts: ServerParts
  readonly #restarts: Restarts
  readonly #triedAt = new Map<string, number>()
  #moving: Promise<void> | undefined

  constructor(membership: Membership, parts: ServerParts, restarts: Restarts) {
    this.#membership = membership
    this.#parts = parts
    this.#restarts = restarts
  }

  /** Moves what can move, if the operator wants this node empty. */
  check(): void {
    if (this.#membership.node.schedule === 'draining') void this.moveAll()
  }

  /** Moves what can move now. */
  moveAll(): Promise<void> {
    this.#moving ??= this.#moveEach().finally(() => {
      this.#moving = undefined
    })
    return this.#moving
  }

  async #moveEach(): Promise<void> {
    const queue = [...this.#parts.supervisor.all].filter((entry) => this.#isDue(entry))
    const work = async (): Promise<void> => {
      for (let entry = queue.shift(); entry; entry = queue.shift()) await this.#move(entry)
    }
    await Promise.all(Array.from({ length: AT_ONCE }, work))
  }

  #isDue({ id, state, restarts, sandbox }: LiveSandbox): boolean {
    const mayMove = state === 'ready' ? restarts : state === 'paused' && !sandbox
    return mayMove && monotonicMs() - (this.#triedAt.get(id) ?? Number.NEGATIVE_INFINITY) > AGAIN_MS
  }

  async #move(entry: LiveSandbox): Promise<void> {
    const { supervisor, keys, log } = this.#parts
    const { id, row } = entry
    const principal = (await keys.principalById(row.keyId)) ?? {
      keyId: row.keyId,
      tenant: row.tenant,
      scopes: [],
    }
    const isMoved = await supervisor
      .giveAway(entry, principal, (live) => this.#give(entry, live))
      .catch((error: Error) => {
        log(`sandbox ${id} cannot move: ${error.message}`)
        return false
      })
    if (isMoved) this.#triedAt.delete(id)
    else this.#triedAt.set(id, monotonicMs())
  }

  async #give(entry: LiveSandbox, live: OpenSandbox | undefined): Promise<boolean> {
    const { snapshots, log } = this.#parts
    const { node, config } = this.#membership
    const snapshot = live ? (await snapshots.forMove(entry, live))?.id : entry.row.restore
    if (!snapshot) return false
    const reason = `moved: node ${config.name ?? node.id} is drained`
    const refused = await this.#restarts.one(entry.row, { reason, snapshot, except: node.id })
    if (refused !== undefined) log(`sandbox ${entry.id} stays here: ${refused}`)
    return refused === undefined
  }
}
