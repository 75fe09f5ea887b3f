import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import type { LiveSandbox } from '../lifecycle/live-sandbox.ts'
import { UsageHistory } from './usage-history.ts'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

/** A sandbox that keeps one CPU half busy. */
function halfBusy(): { readonly entry: LiveSandbox; readonly end: () => void } {
  const createdAt = Date.now()
  let end: () => void = () => {}
  const gone = new Promise<void>((resolve) => {
    end = resolve
  })
  const usage = () => ({ cpuMs: (Date.now() - createdAt) / 2, memoryBytes: 1000 })
  const entry = { id: 'sb_1', row: { createdAt }, state: 'ready', sandbox: { usage, plan: {} }, gone }
  return { entry: entry as unknown as LiveSandbox, end }
}

test('a long-lived sandbox is covered from its start, in few samples', async () => {
  const history = new UsageHistory(async () => 7)
  const { entry } = halfBusy()
  const start = Date.now()
  history.follow(entry, { disk: true })
  await vi.advanceTimersByTimeAsync(3 * 3600_000)
  const all = await history.of(entry, 0, Number.POSITIVE_INFINITY)
  expect(all.length).toBeGreaterThan(100)
  expect(all.length).toBeLessThanOrEqual(241)
  expect((all[0]?.at ?? 0) - start).toBeLessThan(5 * 60_000)
  for (const { cpus, diskBytes } of all) expect([Math.round(cpus * 100), diskBytes]).toEqual([50, 7])
  const hour = await history.of(entry, start + 3600_000, start + 2 * 3600_000)
  expect(hour.length).toBeGreaterThan(30)
  for (const { at } of hour) expect(at >= start + 3600_000 && at <= start + 2 * 3600_000).toBe(true)
})

test('nothing is sampled when every sandbox has ended, and disk is measured at most once a minute', async () => {
  let measured = 0
  const history = new UsageHistory(async () => ++measured)
  const { entry, end } = halfBusy()
  history.follow(entry, { disk: true })
  await vi.advanceTimersByTimeAsync(10 * 60_000)
  expect(measured).toBeLessThanOrEqual(11)
  end()
  await vi.advanceTimersByTimeAsync(20_000)
  expect(vi.getTimerCount()).toBe(0)
})

test('a sandbox without watchers has its whole life recorded, also after its end', async () => {
  const history = new UsageHistory(async () => 7)
  const { entry, end } = halfBusy()
  history.follow(entry)
  await vi.advanceTimersByTimeAsync(60_000)
  const alive = history.lifeOf('sb_1')
  expect(alive.length).toBeGreaterThanOrEqual(10)
  expect(history.recent('sb_1').at(-1)).toEqual([50, 1000])
  end()
  await vi.advanceTimersByTimeAsync(10_000)
  expect(history.lifeOf('sb_1')).toEqual(alive)
  expect(history.recent('sb_1')).toEqual([])
})

test('samples are more frequent while someone watches, and disk is measured only if requested', async () => {
  let measured = 0
  const history = new UsageHistory(async () => ++measured)
  history.follow(halfBusy().entry)
  let rounds = 0
  const leave = history.watch(() => rounds++)
  await vi.advanceTimersByTimeAsync(20_000)
  expect(rounds).toBeGreaterThanOrEqual(10)
  leave()
  const before = rounds
  await vi.advanceTimersByTimeAsync(20_000)
  expect([rounds, measured]).toEqual([before, 0])
})
