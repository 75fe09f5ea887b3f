import { describe, expect, test } from 'vitest'
import { OutputBudget } from './output-budget.ts'
import { type OutputChunk, type OutputGap, OutputLog } from './output-log.ts'

const KB = 1024
const piece = (size = KB): Buffer => Buffer.alloc(size, 'x')

function filled(log: OutputLog, pieces: number, size = KB): OutputLog {
  for (let count = 0; count < pieces; count++) void log.push('stdout', piece(size))
  return log
}

async function all(log: OutputLog, after = 0): Promise<(OutputChunk | OutputGap)[]> {
  const found: (OutputChunk | OutputGap)[] = []
  for await (const chunk of log.follow(after)) found.push(chunk)
  return found
}

describe('the output budget', () => {
  test('the command that ended first loses its output first, and a replay says what is gone', async () => {
    const budget = new OutputBudget(20 * KB)
    const [first, second, third] = [1, 2, 3].map(() => new OutputLog(64 * KB, budget, 'a')) as OutputLog[]
    filled(second as OutputLog, 6).end()
    filled(first as OutputLog, 6).end()
    filled(third as OutputLog, 6)
    expect(budget.used).toBeLessThanOrEqual(20 * KB)
    expect([first?.isCut, second?.isCut, third?.isCut]).toEqual([false, true, false])
    filled(third as OutputLog, 8).end()
    expect(second?.text('stdout')).toBe('')
    expect(await all(second as OutputLog)).toEqual([{ gap: true, id: 6 }])
    expect((await all(third as OutputLog)).length).toBe(14)
  })

  test('a tenant with little output loses nothing to one with much output', () => {
    const budget = new OutputBudget(40 * KB)
    const mine = filled(new OutputLog(64 * KB, budget, 'small'), 8)
    mine.end()
    for (let count = 0; count < 50; count++) filled(new OutputLog(64 * KB, budget, 'large'), 8).end()
    expect(mine.isCut).toBe(false)
    expect(budget.used).toBeLessThanOrEqual(40 * KB)
  })

  test('chunks of one byte count with their overhead', () => {
    const budget = new OutputBudget(64 * KB)
    const log = filled(new OutputLog(KB * KB, budget, 'a'), 10_000, 1)
    expect(budget.used).toBeLessThanOrEqual(64 * KB)
    expect(log.text('stdout').length).toBeLessThan(64 * KB)
  })

  test('a command with a slow reader is blocked at the limit, and continues when the reader has caught up', async () => {
    const budget = new OutputBudget(8 * KB)
    const log = new OutputLog(KB * KB, budget, 'a')
    const reader = log.follow(0)
    const begun = reader.next()
    filled(log, 4)
    await begun
    let held: unknown
    for (let count = 0; count < 10 && !held; count++) held = log.push('stdout', piece())
    expect(held).toBeInstanceOf(Promise)
    const ids: number[] = []
    for (let next = await reader.next(); ; next = await reader.next()) {
      if (next.value) ids.push(next.value.id)
      if (next.value?.id === log.lastId) break
    }
    const waiting = reader.next()
    await held
    expect(ids, 'the reader missed nothing').toEqual(Array.from({ length: ids.length }, (_, at) => at + 2))
    log.end()
    expect((await waiting).done).toBe(true)
  })

  test('idle readers do not use the budget of another tenant', async () => {
    const budget = new OutputBudget(64 * KB)
    const stalled = Array.from({ length: 8 }, () => new OutputLog(KB * KB, budget, 'stalled'))
    const readers = stalled.map((log) => log.follow(0))
    for (const [at, log] of stalled.entries()) {
      const begun = readers[at]?.next()
      filled(log, 7)
      await begun
    }
    const answer = filled(new OutputLog(KB * KB, budget, 'honest'), 20)
    answer.end()
    expect(answer.isCut).toBe(false)
    expect(answer.text('stdout').length).toBe(20 * KB)
    expect(stalled.some(({ isCut }) => isCut)).toBe(true)
    for (const reader of readers) await reader.return()
  })

  test('a forgotten log is freed at once, or when its last reader and holder are gone', async () => {
    const budget = new OutputBudget(KB * KB)
    const log = filled(new OutputLog(64 * KB, budget, 'a'), 8)
    const release = log.hold()
    const reader = log.follow(0)
    await reader.next()
    log.forget()
    release()
    expect(budget.used).toBeGreaterThan(8 * KB)
    await reader.return()
    expect(budget.used).toBe(0)
    filled(log, 1)
    expect(budget.used).toBe(0)
  })
})
