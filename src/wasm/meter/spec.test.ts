import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { type WasmFunction, type WasmGlobal, wasmEngine } from '../engine.ts'
import { hasSpecTests, REFUSED, SPEC_DIR, SpecWorld, specNames, specScript } from '../testkit/spec-script.ts'
import { METER_EXPORTS, meterModule, meterWord, readMeter } from './meter.ts'

type Figures = Readonly<Record<string, Readonly<Record<string, number>>>>

/**
 * The scripts whose figures say nothing here, because they use what Node 20's engine does not run and the meter
 * refuses by name on a newer one. Everything else must match.
 */
const NOT_METERED: Readonly<Record<string, readonly string[]>> = {
  'garbage collection': [
    'array.json',
    'array_copy.json',
    'array_fill.json',
    'array_init_data.json',
    'array_new_elem.json',
    'br_on_cast_fail.json',
    'extern.json',
    'proposals__custom-descriptors__br_on_cast.json',
    'ref_cast.json',
    'ref_test.json',
    'struct.json',
  ],
  'typed references': [
    'br_on_non_null.json',
    'br_table.json',
    'call_ref.json',
    'ref_as_non_null.json',
    'ref_is_null.json',
    'ref_null.json',
    'return_call_ref.json',
  ],
  '64-bit memory': [
    'address64.json',
    'bulk64.json',
    'load64.json',
    'memory64.json',
    'memory_trap64.json',
    'table_grow64.json',
    'table_size64.json',
  ],
  'multiple memories': [
    'data_drop0.json',
    'load0.json',
    'load2.json',
    'memory-multi.json',
    'memory_copy0.json',
    'memory_copy1.json',
    'memory_init0.json',
    'memory_size1.json',
    'memory_trap0.json',
    'memory_trap1.json',
    'start0.json',
  ],
  'exceptions with references': ['throw_ref.json'],
}
const EXCEPTED = new Set(Object.values(NOT_METERED).flat())

const present = hasSpecTests()
const why = present ? '' : ` (skipped: the spec tests are not at ${SPEC_DIR})`

describe.skipIf(!present)(`spec tests${why}`, () => {
  const figures = present
    ? (JSON.parse(readFileSync(join(SPEC_DIR, 'wasmtime-fuel.json'), 'utf8')) as Figures)
    : {}

  it('metered modules behave like unmetered ones, for exactly the fuel that Wasmtime counts', () => {
    const problems: string[] = []
    const unmatched = new Set<string>()
    let compared = 0
    let matched = 0
    for (const name of specNames()) {
      const [plain, metered] = [new SpecWorld(false), new SpecWorld(true)]
      for (const [index, command] of specScript(name).entries()) {
        const [before, after] = [plain.run(command), metered.run(command)]
        const figure = figures[name]?.[index]
        const taken =
          before && after && !before.did.startsWith('CompileError') && !after.did.startsWith(REFUSED)
        if (figure !== undefined && after?.fuel === figure) matched++
        else if (figure !== undefined && taken)
          problems.push(`${name} ${index}: ${after.fuel} instead of ${figure}`)
        else if (figure !== undefined) unmatched.add(name)
        if (!taken) continue
        compared++
        if (before.did !== after.did) problems.push(`${name} ${index}: ${before.did} became ${after.did}`)
      }
    }
    expect(problems).toEqual([])
    expect([...unmatched].filter((name) => !EXCEPTED.has(name))).toEqual([])
    expect(compared).toBeGreaterThan(50_000)
    expect(matched).toBeGreaterThan(9_500)
  })

  it('an invalid module is refused even if the rewrite would make it valid', () => {
    let refused = 0
    for (const name of specNames()) {
      for (const { c, b } of specScript(name)) {
        if ((c !== 'assert_invalid' && c !== 'assert_malformed') || !b) continue
        const bytes = Buffer.from(b, 'base64')
        if (wasmEngine().validate(bytes)) continue
        refused++
        expect(() => meterModule(bytes), name).toThrow('not a valid WebAssembly module')
      }
    }
    expect(refused).toBeGreaterThan(1000)
  })

  const kernels = present
    ? (JSON.parse(readFileSync(join(SPEC_DIR, 'kernels', 'wasmtime-fuel.json'), 'utf8')) as Record<
        string,
        { readonly n: number; readonly fuel: number }
      >)
    : {}
  it.each(Object.entries(kernels))('kernel %s costs what Wasmtime counts', (name, { n, fuel }) => {
    const source = readFileSync(join(SPEC_DIR, 'kernels', `${name}.wasm`))
    const { bytes } = meterModule(source)
    const instance = new (wasmEngine().Instance)(new (wasmEngine().Module)(bytes), { env: {} })
    const meter = instance.exports[METER_EXPORTS.meter] as WasmGlobal
    const budget = 2 ** 40
    meter.value = meterWord(budget, 1024)
    ;(instance.exports[METER_EXPORTS.work] as WasmGlobal).value = 2n ** 40n
    ;(instance.exports.run as WasmFunction)(n)
    expect(budget - readMeter(meter.value).fuel).toBe(fuel)
  })
})
