import type { Restarts } from '../cluster/restarts.ts'
import { monotonicMs } from '../host/clock.ts'
import type { Spec } from '../model/spec.ts'
import type { ServerParts } from '../server/parts.ts'
import type { LiveSandbox } from '../supervisor/lifecycle/live-sandbox.ts'
import type { OpenSandbox } from '../supervisor/open-sandbox.ts'
import type { VolumeMoves } from '../supervisor/volumes/volume-moves.ts'
import { giveVolumes } from './cluster-volumes.ts'
import type { Membership } from './serve-cluster.ts'

/** How many sandboxes move at a time. */
const AT_ONCE = 4
/** When to try again with one that could not move. */
const AGAIN_MS = 30_000
const VOLUMES_AGAIN_MS = 3000
/** How much of what stays is said. */
const MOST_SAID = 50

/**
 * Moves sandboxes away from a node that drains: those that are paused without their memory, and those that agreed to it with
 * `restart: true`. Of the rest it says why they stay.
 */
export class Drain {
  readonly #membership: Membership
  readonly #parts: ServerParts
  readonly #restarts: Restarts
  readonly #moves: VolumeMoves
  /** Why what was tried stays. */
  readonly #refused = new Map<string, string>()
  #volumes: ReadonlyMap<string, string> = new Map()
  #giving: Promise<void> | undefined
  #gaveAt = Number.NEGATIVE_INFINITY
  readonly #triedAt = new Map<string, number>()
  #moving: Promise<void> | undefined

  constructor(
    membership: Membership,
    parts: ServerParts,
    { restarts, moves }: { readonly restarts: Restarts; readonly moves: VolumeMoves },
  ) {
    this.#membership = membership
    this.#parts = parts
    this.#restarts = restarts
    this.#moves = moves
  }

  /** Moves what can move, if the operator wants this node empty. */
  check(): void {
    if (this.#membership.node.schedule !== 'draining') {
      this.#membership.staying.list = []
      return
    }
    void this.moveAll()
      .then(() => this.#giveVolumes())
      .finally(() => this.#report())
  }

  /** Volumes only leave a node that the operator empties: one that is stopped comes back, and has them still. */
  #giveVolumes(): Promise<void> {
    if (monotonicMs() - this.#gaveAt < VOLUMES_AGAIN_MS) return Promise.resolve()
    this.#giving ??= giveVolumes(this.#membership, this.#moves)
      .then((stays) => {
        this.#volumes = stays
      })
      .catch((error: Error) => this.#parts.log(`volumes cannot move: ${error.message}`))
      .finally(() => {
        this.#giving = undefined
        this.#gaveAt = monotonicMs()
      })
    return this.#giving
  }

  /** Moves what can move now. */
  moveAll(): Promise<void> {
    this.#moving ??= this.#moveEach().finally(() => {
      this.#moving = undefined
    })
    return this.#moving
  }

  async #moveEach(): Promise<void> {
    const all = [...this.#parts.supervisor.all]
    const ids = new Set(all.map(({ id }) => id))
    for (const id of this.#refused.keys()) if (!ids.has(id)) this.#refused.delete(id)
    const queue = all.filter((entry) => whyItStays(entry) === undefined && this.#isDue(entry))
    const work = async (): Promise<void> => {
      for (let entry = queue.shift(); entry; entry = queue.shift()) await this.#move(entry)
    }
    await Promise.all(Array.from({ length: AT_ONCE }, work))
  }

  #isDue({ id }: LiveSandbox): boolean {
    return monotonicMs() - (this.#triedAt.get(id) ?? Number.NEGATIVE_INFINITY) > AGAIN_MS
  }

  /** What other nodes, and the operator, see of this node with its next renewal. */
  #report(): void {
    const sandboxes = [...this.#parts.supervisor.all].flatMap((entry) => {
      const why = whyItStays(entry) ?? this.#refused.get(entry.id)
      return why === undefined ? [] : [{ id: entry.id, why }]
    })
    const volumes = [...this.#volumes].map(([id, why]) => ({ id, why }))
    this.#membership.staying.list = [...sandboxes, ...volumes].slice(0, MOST_SAID)
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
        this.#refused.set(id, error.message)
        return false
      })
    if (isMoved) this.#triedAt.delete(id)
    else this.#triedAt.set(id, monotonicMs())
  }

  async #snapshotOf(entry: LiveSandbox, live: OpenSandbox | undefined): Promise<string | undefined> {
    if (!live) return entry.row.restore ?? undefined
    return (await this.#parts.snapshots.forMove(entry, live))?.id
  }

  /** What outlives this server needs no snapshot: the other one goes on with it. */
  async #give(entry: LiveSandbox, live: OpenSandbox | undefined): Promise<boolean> {
    const { log } = this.#parts
    const { node, config } = this.#membership
    const snapshot = live?.outlives ? undefined : await this.#snapshotOf(entry, live)
    if (!snapshot && !live?.outlives) {
      this.#refused.set(entry.id, 'no other node could store its files')
      return false
    }
    const reason = `moved: node ${config.name ?? node.id} is drained`
    const refused = await this.#restarts.one(entry.row, { reason, snapshot, except: node.id })
    if (refused !== undefined) {
      log(`sandbox ${entry.id} stays here: ${refused}`)
      this.#refused.set(entry.id, `no other node takes it: ${refused}`)
    }
    return refused === undefined
  }
}

/** Why a sandbox cannot move; undefined if it may. */
function whyItStays({ state, restarts, sandbox, row }: LiveSandbox): string | undefined {
  const [volume] = (JSON.parse(row.spec) as Spec).volumes ?? []
  if (volume) return `it mounts volume \`${volume.name}\``
  if (state === 'ready')
    return restarts || sandbox?.outlives ? undefined : 'it runs, and was created without `restart: true`'
  if (state !== 'paused') return `it is ${state}`
  return sandbox && !restarts
    ? 'it is paused with its memory, which cannot move, and was created without `restart: true`'
    : undefined
}
