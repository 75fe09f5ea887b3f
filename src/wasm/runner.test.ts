import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, describe, expect, it, vi } from 'vitest'
import { WasmRunner } from './runner.ts'
import { WasmSandbox } from './sandbox.ts'
import { BUMP_ALLOC, BUMP_GLOBAL, buildModule, I32, I64, op, plain } from './testkit/module-builder.ts'

const runner = new WasmRunner({ threads: 4 })
afterAll(() => runner.close())

const SPIN = plain([op.loop, op.br(0), op.end])
const ASKING = buildModule({
  imports: [{ module: 'ringfence', name: 'host_call', params: [I32, I32], results: [I64] }],
  memory: { min: 4 },
  globals: [BUMP_GLOBAL],
  functions: [
    { export: 'execute', params: [I32, I32], results: [I64], body: [op.get(0), op.get(1), op.call(0)] },
    BUMP_ALLOC,
  ],
})
/** More fuel than can be used in a second. */
const MUCH = 10_000_000_000

describe('the watchdog', () => {
  it('ends a loop at its deadline', async () => {
    const result = await new WasmSandbox({ runner, fuel: MUCH, epochDeadline: 3 }).run(SPIN)
    expect(result).toMatchObject({
      error: { code: 'timeout' },
      violations: [{ violationType: 'Timeout', details: 'wall clock' }],
    })
    expect(result.durationMs).toBeGreaterThan(290)
    if (process.env.RINGFENCE_FULL) expect(result.durationMs).toBeLessThan(900)
  })

  it('ends a host call at its deadline, and aborts the work of the host', async () => {
    let aborted = false
    let called = false
    const hostCall = async (_: string, __: unknown, signal: AbortSignal): Promise<null> => {
      called = true
      await sleep(30_000, undefined, { signal, ref: false }).catch(() => {
        aborted = true
      })
      return null
    }
    const box = new WasmSandbox({ runner, epochDeadline: 4 })
    const result = await box.run(ASKING, { method: 'sleep' }, { hostCall, grants: ['ToolAll'] })
    expect(result).toMatchObject({ error: { code: 'timeout' } })
    if (process.env.RINGFENCE_FULL) expect(result.durationMs).toBeLessThan(900)
    await vi.waitFor(() => expect([called, aborted]).toEqual([true, true]))
  })

  it('does not affect other runs', async () => {
    const short = new WasmSandbox({ runner, fuel: MUCH, epochDeadline: 1 })
    const long = new WasmSandbox({ runner, epochDeadline: 20 })
    const hostCall = async (): Promise<string> => {
      await sleep(450)
      return 'slept'
    }
    const other = long.run(ASKING, { method: 'sleep' }, { hostCall, grants: ['ToolAll'] })
    const ended = await Promise.all([short.run(SPIN), short.run(SPIN), short.run(SPIN)])
    expect(ended.map((result) => 'error' in result && result.error.code)).toEqual([
      'timeout',
      'timeout',
      'timeout',
    ])
    expect(await other).toMatchObject({ ok: { ok: 'slept' } })
  })

  it('drops a late reply, so that the next run does not get it', async () => {
    const single = new WasmRunner({ threads: 1 })
    const box = new WasmSandbox({ runner: single, epochDeadline: 1 })
    const busy = async (): Promise<string> => {
      const until = performance.now() + 250
      while (performance.now() < until);
      return 'stale'
    }
    const patient = new WasmSandbox({ runner: single, epochDeadline: 100 })
    const ask = (hostCall: () => Promise<string>, by = box) =>
      by.run(ASKING, { method: 'x' }, { hostCall, grants: ['ToolAll'] })
    expect(await ask(busy)).toMatchObject({ error: { code: 'timeout' } })
    expect(await ask(async () => 'fresh', patient)).toMatchObject({ ok: { ok: 'fresh' } })
    box.close()
  })

  it('answers in time even if the thread cannot be interrupted; its fuel ends it later', async () => {
    const fill = plain(
      [op.loop, op.i32(0), op.i32(1), op.i32(1000 * 65_536), op.memoryFill, op.br(0), op.end],
      { memory: { min: 1000 } },
    )
    const bounded = await new WasmSandbox({ runner, epochDeadline: 20 }).run(fill)
    expect(bounded).toMatchObject({ error: { code: 'resource-exhausted', resource: 'fuel' } })
    const late = await new WasmSandbox({ runner, fuel: MUCH, epochDeadline: 1 }).run(fill)
    expect(late).toMatchObject({ error: { code: 'timeout' } })
    if (process.env.RINGFENCE_FULL) expect(late.durationMs).toBeLessThan(900)
  })
})

describe('the pool', () => {
  it('runs more jobs than it has threads, in order', async () => {
    const small = new WasmRunner({ threads: 1 })
    const box = new WasmSandbox({ runner: small })
    const order: number[] = []
    const echo = plain([op.get(0)], { params: [I32], results: [I32] })
    await Promise.all(
      [1, 2, 3, 4, 5].map(async (n) => order.push(((await box.run(echo, n)) as { ok: number }).ok)),
    )
    expect(order).toEqual([1, 2, 3, 4, 5])
    box.close()
    await expect(box.run(echo, 1)).rejects.toThrow('the sandbox is closed')
  })

  it.each([
    ['twenty threads', 20],
    ['the usual pool', undefined],
  ])('keeps the host responsive while twenty loops spin on %s', async (_, threads) => {
    const many = threads === undefined ? new WasmRunner() : new WasmRunner({ threads })
    const box = new WasmSandbox({ runner: many, fuel: MUCH, epochDeadline: 3 })
    await Promise.all(Array.from({ length: 20 }, () => box.run(plain([]))))
    const delay = monitorEventLoopDelay({ resolution: 1 })
    delay.enable()
    const results = await Promise.all(Array.from({ length: 20 }, () => box.run(SPIN)))
    delay.disable()
    box.close()
    expect(results.every((result) => 'error' in result && result.error.code === 'timeout')).toBe(true)
    if (process.env.RINGFENCE_FULL) expect(delay.percentile(99) / 1e6).toBeLessThan(20)
  })
})

describe('callers', () => {
  it('take turns: many endless loops of one caller do not block another caller', async () => {
    const two = new WasmRunner({ threads: 2 })
    const spinning = new WasmSandbox({ runner: two, fuel: MUCH, epochDeadline: 3 })
    const quick = new WasmSandbox({ runner: two })
    const ended: string[] = []
    const note = async (name: string, run: Promise<unknown>): Promise<void> => {
      await run
      ended.push(name)
    }
    const greedy = Array.from({ length: 8 }, () =>
      note('greedy', spinning.run(SPIN, null, { caller: 'greedy' })),
    )
    const honest = note('honest', quick.run(plain([]), null, { caller: 'honest' }))
    await Promise.all([...greedy, honest])
    two.close()
    // The two runs in progress may end first; no other run gets a thread.
    expect(ended.indexOf('honest')).toBeLessThanOrEqual(2)
  })
})

describe('compiling', () => {
  const looping = (loops: number, functions: number): Uint8Array => {
    const body = Array.from({ length: loops }, () => [op.loop, op.i32(0), op.brIf(0), op.end]).flat()
    const calls = Array.from({ length: functions }, (_, at) => op.call(at + 1))
    const spin = [op.loop, ...calls, op.br(0), op.end]
    return plain(spin, { functions: Array.from({ length: functions }, () => ({ body })) })
  }

  it.each([
    ['one function of 5,000 loops', 5000, 1],
    ['sixty functions of 500', 500, 60],
  ])('refuses %s, which V8 would optimise without any limit', async (_, loops, functions) => {
    const result = await new WasmSandbox({ runner }).run(looping(loops, functions))
    expect(result).toMatchObject({ error: { code: 'resource-exhausted' } })
    expect('error' in result && result.error.message).toContain('loops')
  })

  it('counts towards the deadline of the run, function by function', async () => {
    // `if` without a body.
    const body = [Array.from({ length: 60_000 }, () => [0x41, 0, 0x04, 0x40, 0x0b]).flat()]
    const functions = Array.from({ length: 8 }, () => ({ body }))
    const large = plain(
      functions.map((_, at) => op.call(at + 1)),
      { functions },
    )
    const result = await new WasmSandbox({ runner, fuel: MUCH, epochDeadline: 1 }).run(large)
    expect(result).toMatchObject({ error: { code: 'timeout' } })
    // To compile all of them takes seconds.
    if (process.env.RINGFENCE_FULL) expect(result.durationMs).toBeLessThan(1500)
  })

  it.runIf(process.env.RINGFENCE_FULL)(
    'leaves the process idle soon after the largest accepted module',
    async () => {
      const own = new WasmRunner({ threads: 1 })
      const worst = looping(999, 2)
      const result = await new WasmSandbox({ runner: own, fuel: MUCH, epochDeadline: 20 }).run(worst)
      // A fast machine uses up the fuel before the deadline.
      expect(result).toMatchObject({
        error: { code: expect.stringMatching(/^(timeout|resource-exhausted)$/) },
      })
      const { user, system } = process.cpuUsage()
      await sleep(3000)
      const after = process.cpuUsage({ user, system })
      own.close()
      expect((after.user + after.system) / 1000).toBeLessThan(1500)
    },
  )
})
