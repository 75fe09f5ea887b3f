import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { wasmEngine } from '../engine.ts'
import { runIsolated } from '../testkit/isolated.ts'
import { Dice, randomModule } from '../testkit/random-module.ts'
import { hasSpecTests, SPEC_DIR, specNames, specScript } from '../testkit/spec-script.ts'
import { meterModule } from './meter.ts'

const full = Boolean(process.env.RINGFENCE_FULL)
const seed = full ? Date.now() % 2 ** 31 : 20_240_501
const FUEL = 20_000
const FRAMES = 100

describe(`random modules, seed ${seed}`, { timeout: full ? 900_000 : 60_000 }, () => {
  it('cost as much fuel as counting every instruction, and give the same results', async () => {
    const modules = Array.from({ length: full ? 5000 : 300 }, (_, index) => randomModule(seed + index * 7919))
    const metered = await runIsolated(
      modules.map(({ plain }) => ({ bytes: meterModule(plain).bytes, fuel: FUEL, frames: FRAMES })),
    )
    // Only cases that ended by themselves run without a meter, and only up to the first call that was stopped: that call left
    // the memory half written, so later results would differ.
    const ended = metered.map((calls) => {
      const stopped = calls.findIndex(({ did }) => did === 'fuel' || did === 'stack')
      return stopped === -1 ? calls : calls.slice(0, stopped)
    })
    const counted = await runIsolated(
      modules.map(({ counted }, index) => ({
        bytes: counted,
        fuel: FUEL,
        frames: FRAMES,
        only: ended[index]?.map(({ name }) => name) ?? [],
      })),
    )
    let compared = 0
    for (const [index, calls] of ended.entries()) {
      for (const [at, call] of calls.entries()) {
        const other = counted[index]?.[at]
        const mine = { did: call.did, memory: call.memory, fuel: /^-?\d+$/.test(call.did) ? call.fuel : 0 }
        const wanted = { did: other?.did, memory: other?.memory, fuel: mine.fuel === 0 ? 0 : other?.count }
        expect(mine, `seed ${seed + index * 7919} ${call.name}`).toEqual(wanted)
        compared++
      }
    }
    expect(compared).toBeGreaterThan(full ? 5000 : 300)
  })
})

/** Valid modules made by mutating bytes of valid modules. */
function mutants(sources: readonly Uint8Array[], wanted: number): readonly Uint8Array[] {
  const dice = new Dice(seed)
  const found: Uint8Array[] = []
  for (let tries = 0; found.length < wanted && tries < wanted * 200; tries++) {
    const bytes = mutate(Uint8Array.from(sources[dice.below(sources.length)] as Uint8Array), dice)
    if (wasmEngine().validate(bytes)) found.push(bytes)
  }
  return found
}

function mutate(bytes: Uint8Array, dice: Dice): Uint8Array {
  for (let changes = 1 + dice.below(3); changes > 0; changes--) {
    const at = 8 + dice.below(Math.max(1, bytes.length - 8))
    const kind = dice.below(3)
    if (kind === 0) bytes[at] = dice.below(256)
    else if (kind === 1) bytes[at] = (bytes[at] as number) ^ (1 << dice.below(8))
    else bytes.copyWithin(at, 8 + dice.below(bytes.length - 8), 8 + dice.below(bytes.length - 8))
  }
  return bytes
}

function sources(): readonly Uint8Array[] {
  const random = Array.from({ length: 60 }, (_, index) => randomModule(index * 31 + 5).plain)
  if (!hasSpecTests()) return random
  const kernels = ['fib', 'qsort', 'json', 'sha'].map((name) =>
    readFileSync(join(SPEC_DIR, 'kernels', `${name}.wasm`)),
  )
  const specs = specNames()
    .filter((name) =>
      /^(br|call|if|loop|labels|block|switch|legacy|return_call|memory_|table_|bulk|simd_lane)/.test(name),
    )
    .flatMap((name) =>
      specScript(name).flatMap(({ c, b }) => (c === 'module' && b ? [Buffer.from(b, 'base64')] : [])),
    )
    .filter((bytes) => bytes.length < 4000 && wasmEngine().validate(bytes))
  return [...random, ...kernels, ...specs]
}

describe(`mutated modules, seed ${seed}`, { timeout: full ? 900_000 : 60_000 }, () => {
  it('never exceed their limit, and stay valid after the rewrite', async () => {
    const cases = mutants(sources(), full ? 20_000 : 400).flatMap((bytes) => {
      try {
        return [{ bytes: meterModule(bytes, { memoryMb: 4 }).bytes, fuel: FUEL, frames: FRAMES }]
      } catch (error) {
        // Refusals with a SandboxError are fine, except "leaves no room", which means a broken rewrite.
        expect((error as Error).message).toMatch(/does not support|limit|longer|reserved/)
        return []
      }
    })
    const results = await runIsolated(cases)
    const overrun = results.flat().filter(({ did, fuel }) => did !== 'fuel' && did !== 'stack' && fuel > FUEL)
    expect(overrun).toEqual([])
    expect(results.flat().length).toBeGreaterThan(300)
  })
})
