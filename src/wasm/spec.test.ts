import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { SPEC_DIR, SpecWorld, specNames, specScript } from './testkit/spec-script.ts'

it('x', () => {
  const figures = JSON.parse(readFileSync(join(SPEC_DIR, 'wasmtime-fuel.json'), 'utf8'))
  let steps = 0,
    bad = 0,
    fuelOk = 0,
    fuelBad = 0,
    fuelMissing = 0
  const miss = new Map<string, number>()
  const refused = new Map<string, number>()
  const t0 = performance.now()
  for (const name of specNames()) {
    const plain = new SpecWorld(false),
      metered = new SpecWorld(true)
    specScript(name).forEach((command, index) => {
      const a = plain.run(command),
        b = metered.run(command)
      const fig = figures[name]?.[String(index)]
      if (a === undefined) {
        if (fig !== undefined) {
          fuelMissing++
          miss.set(name, 1 + (miss.get(name) ?? 0))
        }
        return
      }
      if (a.did.startsWith('CompileError') || b === undefined) return
      steps++
      if (a.did !== b?.did) {
        const key = b?.did.startsWith('refused') ? b.did : ''
        if (key) {
          refused.set(name + ' ' + key, 1 + (refused.get(name + ' ' + key) ?? 0))
        } else if (bad++ < 60)
          console.log(
            name,
            index,
            command.c,
            JSON.stringify(command.a)?.slice(0, 120),
            '|',
            a.did,
            '|',
            b?.did,
          )
      }
      if (fig !== undefined) {
        if (b?.fuel === fig) fuelOk++
        else if (b?.fuel === undefined) {
          fuelMissing++
          miss.set(name, 1 + (miss.get(name) ?? 0))
        } else if (fuelBad++ < 40)
          console.log('FUEL', name, index, JSON.stringify(command.a)?.slice(0, 100), fig, b?.fuel)
      }
    })
  }
  console.log({ steps, bad, fuelOk, fuelBad, fuelMissing, ms: performance.now() - t0 })
  console.log(JSON.stringify([...miss]), JSON.stringify([...refused]))
  expect(bad).toBe(0)
})
