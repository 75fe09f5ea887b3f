import { describe, expect, test } from 'vitest'
import { Admission } from './admission.ts'

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

/** The admitted callers by name, in order of admission. */
class Visitors {
  readonly admission: Admission
  readonly inside: { readonly name: string; readonly leave: () => void }[] = []
  readonly refused: string[] = []

  constructor(running: number, waiting: number, strict = false) {
    this.admission = new Admission('guests', { running, waiting, strict })
  }

  async come(tenant: string, keyId: string, count: number): Promise<void> {
    for (let at = 0; at < count; at++)
      this.admission.enter({ tenant, keyId }).then(
        (leave) => this.inside.push({ name: `${tenant}/${keyId}`, leave }),
        () => this.refused.push(`${tenant}/${keyId}`),
      )
    await turn()
  }

  async go(count: number): Promise<void> {
    for (const { leave } of this.inside.splice(0, count)) leave()
    await turn()
  }

  count(name: string): number {
    return this.inside.filter((one) => one.name === name).length
  }
}

describe('admission', () => {
  test('a single tenant gets every slot; further callers wait, then are refused', async () => {
    const hall = new Visitors(8, 4)
    await hall.come('a', 'k', 20)
    expect([hall.inside.length, hall.admission.waiting, hall.refused.length]).toEqual([8, 4, 8])
    await hall.go(8)
    expect([hall.inside.length, hall.admission.waiting]).toEqual([4, 0])
  })

  test('a tenant never waits for another tenant’s sleeping commands, up to its equal share', async () => {
    const hall = new Visitors(64, 100)
    await hall.come('a', 'k', 70)
    await hall.come('b', 'k', 40)
    expect(hall.count('a/k')).toBe(64)
    expect(hall.count('b/k')).toBe(32)
    await hall.come('c', 'k', 1)
    expect(hall.count('c/k')).toBe(1)
  })

  test('nor does a key wait for another key of its tenant', async () => {
    const hall = new Visitors(64, 100)
    await hall.come('a', 'busy', 70)
    await hall.come('a', 'calm', 1)
    expect(hall.count('a/calm')).toBe(1)
  })

  test('waiting callers are served in turns, between tenants and between keys', async () => {
    const hall = new Visitors(4, 100)
    await hall.come('a', 'k', 30)
    await hall.come('b', 'one', 20)
    await hall.come('b', 'two', 20)
    await hall.go(hall.inside.length)
    const counts = ['a/k', 'b/one', 'b/two'].map((name) => hall.count(name))
    expect(Math.min(...counts)).toBeGreaterThan(0)
    expect(hall.count('a/k')).toBeLessThanOrEqual(2)
  })

  test('a full queue of one tenant does not block another tenant', async () => {
    const hall = new Visitors(2, 4)
    await hall.come('a', 'k', 50)
    await hall.come('b', 'k', 4)
    expect(hall.count('b/k')).toBe(1)
    expect(hall.refused.filter((name) => name === 'b/k').length).toBe(1)
    expect(hall.admission.waiting).toBe(6)
  })

  test('without a queue, excess callers are refused at once; nothing is left after all have finished', async () => {
    const hall = new Visitors(3, 0)
    await hall.come('a', 'k', 5)
    expect([hall.inside.length, hall.refused.length]).toEqual([3, 2])
    await hall.go(3)
    await hall.come('a', 'k', 3)
    expect(hall.inside.length).toBe(3)
    await hall.go(3)
    expect([hall.admission.running, hall.admission.waiting]).toEqual([0, 0])
  })

  test('refused callers leave nothing behind', async () => {
    const hall = new Visitors(1, 10)
    await hall.come('a', 'k', 5)
    hall.admission.turnAway(new Error('closing'))
    await turn()
    expect([hall.refused.length, hall.admission.waiting]).toEqual([4, 0])
    await hall.go(1)
    await hall.come('b', 'k', 1)
    expect(hall.inside.length).toBe(1)
  })
})

describe('a strict limit', () => {
  test('is never exceeded, and keys take turns by the number of their running commands', async () => {
    const visitors = new Visitors(2, 100, true)
    await visitors.come('a', 'greedy', 5)
    await visitors.come('b', 'honest', 1)
    expect([visitors.count('a/greedy'), visitors.count('b/honest')]).toEqual([2, 0])
    await visitors.go(1)
    expect([visitors.count('a/greedy'), visitors.count('b/honest')]).toEqual([1, 1])
    await visitors.go(1)
    expect(visitors.inside.length).toBe(2)
  })

  test('runs work in order, releases the slot on failure, and rejects waiting callers on demand', async () => {
    const admission = new Admission('jobs', { running: 3, waiting: 100, strict: true })
    let [now, most] = [0, 0]
    const order: number[] = []
    const work = (n: number) =>
      admission.run(async () => {
        order.push(n)
        most = Math.max(most, ++now)
        await turn()
        now--
        if (n % 4 === 0) throw new Error('its own')
      })
    const done = await Promise.allSettled(Array.from({ length: 20 }, (_, n) => work(n)))
    expect(most).toBe(3)
    expect(order).toEqual(Array.from({ length: 20 }, (_, n) => n))
    expect(done.filter(({ status }) => status === 'rejected').length).toBe(5)
    const held = await Promise.all([1, 2, 3].map(() => admission.enter()))
    const refused = expect(admission.enter()).rejects.toThrow('closed')
    admission.turnAway(new Error('closed'))
    await refused
    for (const release of held) release()
    expect([admission.running, admission.waiting]).toEqual([0, 0])
  })

  test('slots are taken at once or not at all, several together, and given back once', async () => {
    const hall = new Visitors(4, 0)
    const { admission } = hall
    const leave = admission.take({ tenant: 'a', keyId: 'k' }, 4)
    expect([leave !== undefined, admission.running]).toEqual([true, 4])
    expect(admission.take({ tenant: 'a', keyId: 'k' })).toBeUndefined()
    await hall.come('a', 'k', 1)
    expect(hall.refused).toEqual(['a/k'])
    // Another tenant is below its share.
    const other = admission.take({ tenant: 'b', keyId: 'k' }, 2)
    expect([other !== undefined, admission.running]).toEqual([true, 6])
    leave?.()
    leave?.()
    expect(admission.running).toBe(2)
    expect(admission.take({ tenant: 'a', keyId: 'k' }, 2)).toBeDefined()
  })
})
