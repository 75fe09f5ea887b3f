/** WebAssembly and evaluation: the cost of metering, and the time of a warm call. Ratios compare values of one run. */
import { spawn, spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { meterModule, safeEval, WasmRunner, WasmSandbox } from '../dist/bench/library.js'
import { within } from './bounded.mjs'
import { goal, skipped } from './goals.mjs'

const here = dirname(fileURLToPath(import.meta.url))
const root = dirname(here)
const spec = join(dirname(root), 'shared', 'wasm-spec')
const modules = process.env.BENCH_MODULES ?? here
const rounds = Number(process.env.ROUNDS ?? 15)
const geomean = (values) => Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length)
const percentile = (values, share) => [...values].sort((a, b) => a - b)[Math.floor(values.length * share)]
const aim = (name, value, limit, unit = '') =>
  console.log(`${name.padEnd(58)} ${value.toFixed(3).padStart(8)}${unit}   aim ${limit}`)

function kernels() {
  const { stdout } = spawnSync(process.execPath, ['--no-liftoff', join(here, 'kernels.mjs'), spec], {
    encoding: 'utf8',
  })
  const { results, missing } = JSON.parse(stdout)
  if (missing) {
    skipped('WebAssembly kernels', `${missing} not found`)
    return console.log(`kernels: skipped, ${missing} not found`)
  }
  for (const { name, ratio } of results) console.log(`  kernel ${name.padEnd(14)} ${ratio.toFixed(2)}`)
  const ratioOf = (wanted) => results.find(({ name }) => name === wanted)?.ratio
  goal('metered ÷ unmetered WebAssembly, kernels', geomean(results.map(({ ratio }) => ratio)))
  goal('metered ÷ unmetered WebAssembly, fib', ratioOf('fib'))
  goal('metered ÷ unmetered WebAssembly, indirect', ratioOf('indirect'))
  aim('kernels, metered ÷ unmetered, geometric mean', geomean(results.map(({ ratio }) => ratio)), '≤ 1.15')
}

const NAMES = [
  'quickjs',
  'sqlite',
  'resvg',
  'tiktoken',
  'argon2',
  'hashes',
  'mozjpeg',
  'webp',
  'treesitter',
  'yoga',
]

/** A process that runs one workload per request. */
async function worker(name, mode) {
  const child = spawn(process.execPath, [join(here, 'module-workload.mjs'), modules, name, mode], {
    stdio: ['pipe', 'pipe', 'ignore'],
  })
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const next = async () => {
    const { value, done } = await within(`${name} ${mode}`, lines.next(), undefined, () =>
      child.kill('SIGKILL'),
    )
    if (done) throw new Error(`${name} ${mode} ended`)
    return JSON.parse(value)
  }
  const { sizes } = await next()
  const ask = () => {
    child.stdin.write('\n')
    return next()
  }
  return { sizes, ask, end: () => child.stdin.end() }
}

async function realModule(name) {
  const [plain, metered] = [await worker(name, 'plain'), await worker(name, 'metered')]
  let [before, after] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY]
  for (let round = 0; round < rounds; round++) {
    const [one, other] = [await plain.ask(), await metered.ask()]
    if (one.digest !== other.digest) throw new Error(`${name}: another result when it is metered`)
    before = Math.min(before, one.us)
    after = Math.min(after, other.us)
  }
  plain.end()
  metered.end()
  return { ratio: after / before, growth: metered.sizes.after / metered.sizes.before }
}

async function realModules() {
  const found = []
  for (const name of NAMES) {
    try {
      const result = await realModule(name)
      found.push(result)
      console.log(`  module ${name.padEnd(14)} ${result.ratio.toFixed(2)}   size ${result.growth.toFixed(2)}`)
    } catch (error) {
      skipped(`the module ${name}`, error.message)
      console.log(`  module ${name.padEnd(14)} skipped: ${String(error.message).split('\n')[0]}`)
    }
  }
  if (found.length === 0) return
  goal('metered ÷ unmetered WebAssembly, real modules', geomean(found.map(({ ratio }) => ratio)))
  aim('real modules, metered ÷ unmetered, geometric mean', geomean(found.map(({ ratio }) => ratio)), '≤ 1.12')
  aim('real modules, size, geometric mean', geomean(found.map(({ growth }) => growth)), '≤ 1.5')
}

/** Measured warm: during the first modules, V8 still compiles the rewriter itself. */
function rewriteSpeed() {
  const dir = join(spec, 'kernels')
  const candidates = [
    join(modules, 'node_modules', 'sql.js', 'dist', 'sql-wasm.wasm'),
    ...(existsSync(dir)
      ? readdirSync(dir)
          .filter((file) => file.endsWith('.wasm'))
          .map((file) => join(dir, file))
      : []),
  ].filter((file) => existsSync(file))
  if (candidates.length === 0) return
  const bytes = readFileSync(candidates[0])
  let best = Number.POSITIVE_INFINITY
  for (let round = 0; round < 25; round++) {
    const start = performance.now()
    meterModule(bytes)
    best = Math.min(best, performance.now() - start)
  }
  aim('rewrite, MB per second', bytes.length / 1e6 / (best / 1000), '≥ 10')
}

/** `run(a, b)` adds two numbers: a minimal skill. */
const ADD = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 7, 1, 96, 2, 127, 127, 1, 127, 3, 2, 1, 0, 7, 7, 1, 3, 114, 117, 110, 0, 0,
  10, 9, 1, 7, 0, 32, 0, 32, 1, 106, 11,
]

async function warmCalls() {
  const box = new WasmSandbox({ runner: new WasmRunner({ threads: 1 }) })
  const sample = (name) => readFileSync(join(root, 'examples', 'skills', name, 'main.wasm'))
  const measured = async (bytes, input) => {
    const module = await box.load(bytes)
    const times = []
    for (let round = 0; round < 4000; round++) {
      const start = performance.now()
      await box.run(module, input)
      times.push(performance.now() - start)
    }
    return percentile(times.slice(1000), 0.5)
  }
  aim(
    'warm call of a small skill, fresh instance, p50',
    await measured(Uint8Array.from(ADD), [1, 2]),
    '≤ 0.25',
    ' ms',
  )
  console.log(
    `the same, a C program with standard input, p50 ${(await measured(sample('word-count'), 'a')).toFixed(3)} ms`,
  )
  console.log(`the same, two host calls, p50 ${(await measured(sample('greet'), 'Ada')).toFixed(3)} ms`)
  box.close()
}

function evaluations() {
  const times = []
  for (let round = 0; round < 2000; round++) {
    const start = performance.now()
    safeEval('a * 2 + items.length', { context: { a: 20, items: [1, 2] } })
    times.push(performance.now() - start)
  }
  aim('safe evaluation of an expression, warm, p50', percentile(times.slice(500), 0.5), '≤ 0.3', ' ms')
}

kernels()
await realModules()
rewriteSpeed()
await warmCalls()
evaluations()
process.exit(0)
