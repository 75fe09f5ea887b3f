import { expect, test } from 'vitest'
import { Lease } from '../../src/cluster/lease.ts'
import { type Candidate, choose } from '../../src/cluster/placement.ts'
import { NoRoom, Reservations } from '../../src/cluster/reservations.ts'
import { FULL } from '../server/test-server.ts'

/** A fleet in virtual time, with the placement, reservation and lease code of the product; only time and machines are simulated. */

const NODES = 1000
const CREATES = FULL ? 1_000_000 : 60_000
const TENANTS = 50
const LEASE_MS = 3000
const CAPACITY = {
  cpus: 16,
  memoryMb: 32_768,
  diskMb: 100_000,
  sandboxes: 100,
  perSandbox: { cpus: 0.5, memoryMb: 512, diskMb: 1000 },
}

/** Mulberry32: the same numbers for the same seed. */
function seeded(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296
  }
}

type SimNode = {
  reservations: Reservations
  lease: Lease
  /** Until when the machine is down; it renews nothing meanwhile. */
  downUntil: number
  running: Set<() => void>
  readonly published: { -readonly [Name in keyof Candidate]: Candidate[Name] }
}

/** The ends of sandboxes, by the second. */
type Ends = Map<number, { readonly node: SimNode; readonly leave: () => void }[]>

class Simulation {
  readonly random = seeded(20_260_101)
  now = 0
  readonly nodes: readonly SimNode[]
  readonly ends: Ends = new Map()
  readonly made = new Array<number>(TENANTS).fill(0)
  readonly asked = new Array<number>(TENANTS).fill(0)
  readonly fullness: number[] = []
  overcommitted = 0
  placedOnLost = 0
  tries = 0
  lost = 0

  constructor() {
    this.nodes = Array.from({ length: NODES }, (_, at) => this.#node(`n${at}`))
  }

  #node(id: string): SimNode {
    const reservations = new Reservations(CAPACITY)
    const published = {
      id,
      name: id,
      state: 'up',
      schedule: 'open',
      role: 'node',
      facts: reservations.facts(),
    } as const
    const lease = new Lease(LEASE_MS, () => this.now)
    lease.renewed(0)
    return { reservations, lease, downUntil: 0, running: new Set(), published: { ...published } }
  }

  /** What happens every third of a lease: renewals, takeovers, ends, faults. */
  tick(): void {
    this.now += LEASE_MS / 3
    for (const node of this.nodes) {
      if (this.now >= node.downUntil) this.#renew(node)
      else if (!node.lease.isHeld && node.published.state === 'up') this.#fence(node)
      if (this.random() < 0.0002) node.downUntil = this.now + 20_000 * this.random()
    }
    for (const { node, leave } of this.ends.get(Math.floor(this.now / 1000)) ?? []) {
      node.running.delete(leave)
      leave()
    }
    this.ends.delete(Math.floor(this.now / 1000))
    const used = this.nodes.map(({ reservations }) => reservations.facts().used.cpus / CAPACITY.cpus)
    this.fullness.push(used.reduce((sum, one) => sum + one, 0) / NODES)
    this.overcommitted += used.filter((one) => one > 1).length
  }

  #renew(node: SimNode): void {
    node.lease.renewed(this.now)
    node.published.state = 'up'
    node.published.facts = node.reservations.facts()
  }

  /** Its sandboxes are lost; when it returns it begins empty. */
  #fence(node: SimNode): void {
    node.published.state = 'lost'
    this.lost += node.running.size
    for (const leave of node.running) leave()
    node.running.clear()
    node.reservations = new Reservations(CAPACITY)
  }

  create(): void {
    const tenant = Math.floor(this.random() ** 2 * TENANTS)
    this.asked[tenant] = (this.asked[tenant] ?? 0) + 1
    const limits = this.random() < 0.2 ? { cpus: 2, memoryMb: 4096 } : {}
    const need = (this.nodes[0] as SimNode).reservations.needOf({ limits })
    const choice = choose(this.#candidates, need, this.random)
    if ('refused' in choice) return
    for (const { id } of choice.nodes) {
      this.tries++
      if (this.#reserve(this.nodes[Number(id.slice(1))] as SimNode, limits, tenant)) return
    }
  }

  get #candidates(): readonly Candidate[] {
    return this.#published
  }
  readonly #published: Candidate[] = []

  start(): void {
    this.#published.push(...this.nodes.map(({ published }) => published))
  }

  #reserve(node: SimNode, limits: object, tenant: number): boolean {
    // A node that is down does not answer, and one without its lease refuses.
    if (this.now < node.downUntil || !node.lease.isHeld) return false
    if (node.published.state === 'lost') this.placedOnLost++
    try {
      const leave = node.reservations.reserve({ limits })
      node.running.add(leave)
      const second = Math.floor(this.now / 1000) + 1 + Math.floor(this.random() * 40)
      this.ends.set(second, [...(this.ends.get(second) ?? []), { node, leave }])
      this.made[tenant] = (this.made[tenant] ?? 0) + 1
      return true
    } catch (error) {
      if (error instanceof NoRoom) return false
      throw error
    }
  }
}

const BARS = ' ▁▂▃▄▅▆▇█'
const picture = (values: readonly number[], width = 80): string =>
  Array.from({ length: Math.min(width, values.length) }, (_, at) => {
    const value = values[Math.floor((at * values.length) / Math.min(width, values.length))] ?? 0
    return BARS[Math.min(8, Math.round(value * 8))]
  }).join('')

test(`${NODES} nodes, ${CREATES} creates: no overcommit, no starved tenant`, { timeout: 600_000 }, () => {
  const fleet = new Simulation()
  fleet.start()
  // More than the fleet can hold, so that it has to refuse.
  const perTick = 1200
  for (let done = 0; done < CREATES; done += perTick) {
    for (let at = 0; at < perTick; at++) fleet.create()
    fleet.tick()
  }
  const rates = fleet.made.map((made, tenant) => made / Math.max(1, fleet.asked[tenant] ?? 0))
  const made = fleet.made.reduce((sum, one) => sum + one, 0)
  console.log(
    [
      `${NODES} nodes, ${CREATES} creates in ${Math.round(fleet.now / 1000)} virtual seconds, lease ${LEASE_MS} ms`,
      `processors reserved  |${picture(fleet.fullness)}|  at most ${Math.round(100 * Math.max(...fleet.fullness))} %`,
      `created per tenant   |${picture(rates)}|  ${(100 * Math.min(...rates)).toFixed(1)} to ${(100 * Math.max(...rates)).toFixed(1)} %`,
      `created ${made}, nodes asked per create ${(fleet.tries / made).toFixed(3)}, lost with their node ${fleet.lost}`,
    ].join('\n'),
  )
  expect(fleet.overcommitted).toBe(0)
  expect(fleet.placedOnLost).toBe(0)
  expect(Math.min(...rates)).toBeGreaterThan(0.9 * Math.max(...rates))
})
