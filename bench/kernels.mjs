/**
 * The ratio metered ÷ unmetered of the twelve kernels, as CPU time, measured alternately in one process. Started with
 * `--no-liftoff`, so that only optimised code is compared.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { METER_EXPORTS, meterModule, meterWord } from '../dist/bench/library.js'

const dir = join(process.argv[2], 'kernels')
if (!existsSync(dir)) {
  console.log(JSON.stringify({ missing: dir }))
  process.exit(0)
}
const figures = JSON.parse(readFileSync(join(dir, 'wasmtime-fuel.json'), 'utf8'))

function instance(bytes, metered) {
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(bytes), { env: {} })
  return (n) => {
    if (metered) {
      exports[METER_EXPORTS.meter].value = meterWord(2 ** 40, 1024)
      exports[METER_EXPORTS.work].value = 2n ** 40n
    }
    return exports.run(n)
  }
}

/** CPU time of one call. The kernel only estimates the split into user and system time, so both are added. */
function cpu(action, n, times) {
  const start = process.cpuUsage()
  for (let i = 0; i < times; i++) action(n)
  const { user, system } = process.cpuUsage(start)
  return (user + system) / times
}

const results = []
for (const name of readdirSync(dir)
  .filter((file) => file.endsWith('.wasm'))
  .map((file) => file.slice(0, -5))) {
  const bytes = readFileSync(join(dir, `${name}.wasm`))
  const metered = meterModule(bytes).bytes
  const { n } = figures[name]
  const [plain, counted] = [instance(bytes, false), instance(metered, true)]
  const times = Math.max(1, Math.round(150_000 / Math.max(1, cpu(plain, n, 1))))
  let [before, after] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY]
  for (let round = 0; round < Number(process.env.ROUNDS ?? 12); round++) {
    before = Math.min(before, cpu(plain, n, times))
    after = Math.min(after, cpu(counted, n, times))
  }
  results.push({ name, ratio: after / before, growth: metered.length / bytes.length })
}
console.log(JSON.stringify({ results }))
