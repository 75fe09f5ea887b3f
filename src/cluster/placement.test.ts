import { describe, expect, test } from 'vitest'
import { Lease } from './lease.ts'
import { type Candidate, choose, describeRefusals, mayPass, type Need, refusalOf } from './placement.ts'
import { NoRoom, Reservations } from './reservations.ts'

const node = (id: string, more: Partial<Candidate> & { readonly used?: number } = {}): Candidate => {
  const { used = 0, ...rest } = more
  return {
    id,
    name: id,
    state: 'up',
    schedule: 'open',
    role: 'all',
    facts: {
      cpus: 10,
      memoryMb: 1000,
      diskMb: 1000,
      sandboxes: 100,
      used: { cpus: used, memoryMb: 100 * used, diskMb: 0, sandboxes: used },
      backends: ['bubblewrap'],
      labels: { zone: id.slice(0, 1) },
      failures: 0,
    },
    ...rest,
  }
}
const need: Need = { cpus: 1, memoryMb: 100, diskMb: 10 }

describe('refusalOf', () => {
  const full = (what: object): Candidate['facts'] => ({ ...node('a').facts, ...what })
  test.each<[string, Candidate, Partial<Need>, string | undefined]>([
    ['fits', node('a'), {}, undefined],
    ['lost', node('a', { state: 'lost' }), {}, 'lost'],
    ['serves the API only', node('a', { role: 'api' }), {}, 'role'],
    ['cordoned', node('a', { schedule: 'cordoned' }), {}, 'cordoned'],
    ['draining', node('a', { schedule: 'draining' }), {}, 'cordoned'],
    ['failing', node('a', { facts: full({ failures: 3 }) }), {}, 'failing'],
    ['one failure', node('a', { facts: full({ failures: 1 }) }), {}, undefined],
    ['another node', node('a'), { node: 'b' }, 'node'],
    ['this node', node('a'), { node: 'a' }, undefined],
    ['backend', node('a'), { backend: 'microvm' }, 'backend'],
    ['label', node('a'), { labels: { zone: 'b' } }, 'labels'],
    ['cpu', node('a', { used: 10 }), { memoryMb: 0 }, 'cpu'],
    ['memory', node('a'), { memoryMb: 1001 }, 'memory'],
    ['disk', node('a'), { diskMb: 1001 }, 'disk'],
    ['slots', node('a', { facts: full({ sandboxes: 0 }) }), {}, 'slots'],
  ])('%s', (_, one, more, expected) => {
    expect(refusalOf(one, { ...need, ...more })).toBe(expected)
  })
})

describe('choose', () => {
  test('picks the emptiest of a few nodes, by the scarcest resource of each', () => {
    const choice = choose([node('a', { used: 5 }), node('b', { used: 1 }), node('c', { used: 3 })], need)
    expect('nodes' in choice && choice.nodes.map(({ id }) => id)).toEqual(['b', 'c', 'a'])
  })

  test('reports why no node fits, and whether waiting helps', () => {
    const full = choose([node('a', { used: 10 }), node('b', { schedule: 'cordoned' })], need)
    if (!('refused' in full)) throw new Error('it fits')
    expect(describeRefusals(full.refused)).toBe('1 without enough processors, 1 take no new sandboxes')
    expect(mayPass(full.refused)).toBe(true)
    const never = choose([node('a')], { ...need, labels: { gpu: 'yes' } })
    expect('refused' in never && mayPass(never.refused)).toBe(false)
    expect(describeRefusals(new Map())).toBe('there are no nodes')
  })

  test('finds the only fitting node among a thousand', () => {
    const nodes = Array.from({ length: 1000 }, (_, at) => node(`n${at}`, { used: at === 777 ? 0 : 10 }))
    const choice = choose(nodes, need)
    expect('nodes' in choice && choice.nodes.map(({ id }) => id)).toEqual(['n777'])
  })
})

describe('Reservations', () => {
  const capacity = {
    cpus: 2,
    memoryMb: 1000,
    diskMb: 1000,
    sandboxes: 10,
    perSandbox: { cpus: 1, memoryMb: 10, diskMb: 10 },
  }

  test('never exceed the capacity, and are all released at the end', () => {
    const own = new Reservations(capacity)
    const leave = [own.reserve({}), own.reserve({ limits: { cpus: 1 } })]
    expect(() => own.reserve({})).toThrow(NoRoom)
    leave[0]?.()
    // A second release has no effect.
    leave[0]?.()
    leave.push(own.reserve({}))
    expect(() => own.reserve({})).toThrow('without enough processors')
    for (const one of leave) one()
    expect(own.facts().used).toEqual({ cpus: 0, memoryMb: 0, diskMb: 0, sandboxes: 0 })
  })

  test('a success resets the count of failures', () => {
    const own = new Reservations(capacity)
    own.note(true)
    own.note(true)
    expect(own.failures).toBe(2)
    own.note(false)
    expect(own.failures).toBe(0)
  })
})

test('a lease expires for its holder before it expires in the database', () => {
  let now = 0
  const lease = new Lease(3000, () => now)
  expect(lease.isHeld).toBe(false)
  lease.renewed(100)
  now = 2599
  expect(lease.isHeld).toBe(true)
  expect(lease.isDue).toBe(true)
  now = 2600
  // The database counts 3000 ms from a moment after 100.
  expect(lease.isHeld).toBe(false)
  lease.renewed(50)
  expect(lease.leftMs).toBe(0)
})
