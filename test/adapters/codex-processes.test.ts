import { describe, expect, test } from 'vitest'
import { ExecServerProcess } from '../../src/adapters/codex/processes.ts'
import { OutputBudget } from '../../src/supervisor/exec/output-budget.ts'

describe('output that is kept for a Codex client', () => {
  const made = (budget: OutputBudget, tenant: string): ExecServerProcess =>
    new ExecServerProcess(tenant, false, () => {}, {
      add: (process) => budget.add(tenant, process),
      remove: (process) => budget.remove(tenant, process),
      count: (bytes) => budget.count(tenant, bytes),
      reclaim: () => budget.reclaim(tenant),
    })
  const kept = (process: ExecServerProcess): number =>
    (process.read(0, 1e9) as { readonly chunks: readonly object[] }).chunks.length

  test('counts for its tenant, and is dropped with its session', async () => {
    const budget = new OutputBudget(100_000)
    const [red, blue] = [made(budget, 'red'), made(budget, 'blue')]
    for (let at = 0; at < 5; at++) await blue.output('stdout', Buffer.alloc(1000))
    for (let at = 0; at < 500; at++) await red.output('stdout', Buffer.alloc(1000))
    expect(budget.used).toBeLessThanOrEqual(100_000)
    expect([kept(blue), kept(red) > 50]).toEqual([5, true])
    red.forget()
    await red.output('stdout', Buffer.alloc(1000))
    expect([kept(red), budget.used]).toEqual([0, blue.weight])
    blue.forget()
    expect(budget.used).toBe(0)
  })

  test('counts single bytes with their overhead', async () => {
    const process = made(new OutputBudget(Number.POSITIVE_INFINITY), 'red')
    for (let at = 0; at < 30_000; at++) await process.output('stdout', Buffer.from('x'))
    expect(kept(process)).toBeLessThan(20_000)
  })

  test('readers that have waited in vain are forgotten', async () => {
    const process = made(new OutputBudget(1000), 'red')
    const started = Date.now()
    await Promise.all([process.news(0, 20), process.news(0, 30)])
    expect(Date.now() - started).toBeGreaterThanOrEqual(25)
    const news = process.news(0, 60_000)
    await process.output('stdout', Buffer.from('x'))
    await news
  })
})
