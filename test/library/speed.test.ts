import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { loadEngine, safeEval } from '../../src/index.ts'
import { meterModule } from '../../src/wasm/meter/meter.ts'
import { WasmRunner } from '../../src/wasm/runner.ts'
import { WasmSandbox } from '../../src/wasm/sandbox.ts'
import { I32, op, plain } from '../../src/wasm/testkit/module-builder.ts'
import { packageRoot } from '../conformance/world.ts'

/** Documented times; `npm run bench` measures more. */

const full = process.env.RINGFENCE_FULL !== undefined
const root = packageRoot()
const spec = join(dirname(root), 'shared', 'wasm-spec')
const median = (values: readonly number[]): number =>
  values.toSorted((a, b) => a - b)[values.length >> 1] as number

/** The best of a few attempts: other load on the machine only makes a figure worse. */
async function best(attempts: number, measure: () => number | Promise<number>): Promise<number> {
  let least = Number.POSITIVE_INFINITY
  for (let attempt = 0; attempt < attempts; attempt++) least = Math.min(least, await measure())
  return least
}

describe.skipIf(!full)('speed (RINGFENCE_FULL)', { timeout: 600_000 }, () => {
  const kernels = existsSync(spec) && existsSync(join(root, 'dist', 'bench', 'library.js'))
  it.skipIf(!kernels)('metered kernels take less than 1.18 times the unmetered time', async () => {
    const ratio = await best(3, () => {
      const out = execFileSync(process.execPath, ['--no-liftoff', join(root, 'bench', 'kernels.mjs'), spec], {
        encoding: 'utf8',
        env: { ROUNDS: '8' },
      })
      const { results } = JSON.parse(out) as { results: readonly { ratio: number }[] }
      return Math.exp(results.reduce((sum, one) => sum + Math.log(one.ratio), 0) / results.length)
    })
    // The aim is 1.15. Measured on a shared machine: 1.15 to 1.16. This limit catches regressions and does not claim the aim.
    expect(ratio).toBeLessThan(1.18)
  })

  it('metering rewrites more than 10 MB/s, and grows a module by less than half', async () => {
    const bytes = readFileSync(join(root, 'node_modules', 'quickjs-wasi', 'quickjs.wasm'))
    for (let warm = 0; warm < 10; warm++) meterModule(bytes)
    const ms = await best(20, () => {
      const start = performance.now()
      meterModule(bytes)
      return performance.now() - start
    })
    expect(bytes.length / 1e6 / (ms / 1000)).toBeGreaterThan(10)
    expect(meterModule(bytes).bytes.length / bytes.length).toBeLessThan(1.5)
  })

  it('a warm call with a fresh instance takes less than 0.25 ms', async () => {
    const box = new WasmSandbox({ runner: new WasmRunner({ threads: 1 }) })
    const module = await box.load(plain([op.get(0)], { params: [I32], results: [I32] }))
    const p50 = await best(5, async () => {
      const times: number[] = []
      for (let round = 0; round < 1500; round++) {
        const start = performance.now()
        await box.run(module, 1)
        times.push(performance.now() - start)
      }
      return median(times)
    })
    box.close()
    expect(p50).toBeLessThan(0.25)
  })

  it('a warm evaluation takes less than 0.3 ms', async () => {
    await loadEngine()
    const p50 = await best(5, () => {
      const times = Array.from({ length: 500 }, () => {
        const start = performance.now()
        safeEval('a * 2 + items.length', { context: { a: 20, items: [1, 2] } })
        return performance.now() - start
      })
      return median(times)
    })
    expect(p50).toBeLessThan(0.3)
  })
})
