import { Worker } from 'node:worker_threads'
import { METER_EXPORTS } from '../meter/meter.ts'

/** Runs modules on a separate thread, so that a module that never ends is reported instead of blocking the test. */

/** One module and its budget. */
export type IsolatedCase = {
  readonly bytes: Uint8Array
  readonly fuel: number
  readonly frames: number
  /** The exports to call; all functions when absent. */
  readonly only?: readonly string[]
}
/** The outcome of one exported function. */
export type IsolatedCall = {
  readonly name: string
  /** The result, `fuel` or `stack` if the meter ended it, or the trap's message. */
  readonly did: string
  readonly fuel: number
  readonly count: number
  readonly memory: string
}

const SOURCE = `
const { parentPort, workerData } = require('node:worker_threads')
const { createHash } = require('node:crypto')
const names = workerData
const stub = new Proxy({}, { get: () => new Proxy({}, { get: () => () => 0 }) })
const show = (value) => (Array.isArray(value) ? value.map(String).join() : String(value))
function call(exports, name, args, job) {
  const meter = exports[names.meter], work = exports[names.work]
  if (meter) { meter.value = (BigInt(job.fuel) << 16n) | BigInt(job.frames); work.value = BigInt(job.fuel) }
  if (exports.count instanceof WebAssembly.Global) exports.count.value = 0n
  let did
  try { did = show(exports[name](...args)) } catch (error) { did = error instanceof RangeError ? 'stack' : String(error.message) }
  let fuel = 0
  if (meter) {
    fuel = job.fuel - Number(meter.value >> 16n)
    if (meter.value & 0x8000n) did = 'stack'
    else if (meter.value < 0n || work.value < 0n) did = 'fuel'
  }
  const memory = exports.memory instanceof WebAssembly.Memory && exports.memory.buffer.byteLength <= 1 << 20
    ? createHash('sha1').update(new Uint8Array(exports.memory.buffer)).digest('hex') : ''
  const count = exports.count instanceof WebAssembly.Global ? Number(exports.count.value) : 0
  return { name, did, fuel, count, memory }
}
parentPort.on('message', (job) => {
  const calls = []
  try {
    const module = new WebAssembly.Module(job.bytes)
    const imports = {}
    for (const { module: room, name, kind } of WebAssembly.Module.imports(module)) {
      if (kind === 'function') (imports[room] ??= {})[name] = () => 0
    }
    const { exports } = new WebAssembly.Instance(module, imports)
    for (const name of job.only ?? Object.keys(exports)) {
      if (typeof exports[name] !== 'function' || name.startsWith('\\0')) continue
      const args = Array.from({ length: exports[name].length }, () => 3)
      calls.push(call(exports, name, args, job))
    }
  } catch {}
  parentPort.postMessage(calls)
})
`

/** The outcome of each case, in order; throws with the index of a case that did not end. */
export async function runIsolated(
  cases: readonly IsolatedCase[],
  stallMs = 10_000,
): Promise<readonly (readonly IsolatedCall[])[]> {
  const worker = new Worker(SOURCE, { eval: true, execArgv: [], workerData: METER_EXPORTS })
  const results: (readonly IsolatedCall[])[] = []
  try {
    for (const [index, job] of cases.entries()) {
      results.push(
        await new Promise((resolve, reject) => {
          const timer = setTimeout(() => reject(new Error(`case ${index} does not end`)), stallMs)
          worker.once('message', (calls: readonly IsolatedCall[]) => {
            clearTimeout(timer)
            resolve(calls)
          })
          worker.postMessage(job)
        }),
      )
    }
  } finally {
    void worker.terminate()
  }
  return results
}
