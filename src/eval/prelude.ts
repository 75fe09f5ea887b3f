/**
 * Runs once inside the engine, before the memory image for new VMs is saved. It captures the built-ins it needs, so
 * that guest code cannot replace them later, and returns five functions that only the host can reach.
 *
 * `unbox`: the engine wraps the value of code with top-level `await` in an object; a promise in it is awaited.
 * `Math.random` is replaced: its state would be part of the image, and every evaluation would draw the same numbers.
 */
export const PRELUDE = `(() => {
  'use strict'
  const { parse, stringify } = JSON
  const { defineProperty, ownKeys } = Reflect
  const text = String
  const world = globalThis
  let a = 0, b = 0, c = 0, d = 0
  const random = { random() {
    const t = (a + b | 0) + d | 0
    d = d + 1 | 0
    a = b ^ b >>> 9
    b = c + (c << 3) | 0
    c = (c << 21 | c >>> 11) + t | 0
    return (t >>> 0) / 4294967296
  } }.random
  defineProperty(Math, 'random', { value: random, writable: true, configurable: true })
  const setup = (given) => {
    const { seed, context } = parse(given)
    a = seed[0]; b = seed[1]; c = seed[2]; d = seed[3]
    const keys = ownKeys(context)
    for (let i = 0; i < keys.length; i++)
      defineProperty(world, keys[i], { value: context[keys[i]], writable: true, enumerable: true, configurable: true })
  }
  const unbox = async (box) => box.value
  const json = (value) => stringify(value)
  const truth = (value) => value ? 'true' : 'false'
  const shown = (value) => typeof value === 'object' && value !== null ? stringify(value) : text(value)
  return [setup, unbox, json, truth, shown]
})()`
