/**
 * Virtual machines on an emulated processor, in one run and as ratios to a cold start. Every round measures each row
 * once; the table shows medians. docs/microvm.md describes the differences on a real processor.
 */
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { emulator, machineImages, machines, planOf, testState } from '../dist/bench/library.js'
import { goal, percentile } from './goals.mjs'

const rounds = Number(process.env.ROUNDS ?? 7)
/** Prints its usage and exits, so that only the round trip to the guest is measured. */
const probe = join(dirname(dirname(fileURLToPath(import.meta.url))), 'dist', 'guest', 'ringfence-probe')
const idle = Number(process.env.IDLE ?? 20)
const plan = () => planOf({ backend: 'microvm' })
const settle = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

const timed = async (work) => {
  const before = process.hrtime.bigint()
  await work()
  return Number(process.hrtime.bigint() - before) / 1e6
}
const median = (all) => [...all].sort((a, b) => a - b)[Math.floor(all.length / 2)]
const say = (text) => process.stdout.write(`${text}\n`)

/** From the request for a sandbox to the first command's output; closing is not measured. */
async function first(backend, pause = 0) {
  let sandbox
  const ms = await timed(async () => {
    sandbox = await backend.open(plan())
    await sandbox.exec({ argv: ['/bin/sh', '-c', 'echo'] })
  })
  await sandbox.close()
  await settle(pause)
  return ms
}

/** Memory of a clone, with shared pages divided among all clones (Pss). */
function proportional(pid) {
  const children = (of) =>
    readdirSync(`/proc/${of}/task`).flatMap((thread) =>
      readFileSync(`/proc/${of}/task/${thread}/children`, 'utf8').split(' ').filter(Boolean),
    )
  const own = Number(/^Pss:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'))?.[1] ?? 0)
  return children(pid).reduce((sum, child) => sum + proportional(child), own)
}

async function idleMachines(backend) {
  const sandboxes = []
  for (let count = 0; count < idle; count++) {
    const sandbox = await backend.open(plan())
    await sandbox.exec({ argv: ['true'] })
    sandboxes.push(sandbox)
  }
  const kilobytes = readFileSync(`/proc/${process.pid}/task/${process.pid}/children`, 'utf8')
    .split(' ')
    .filter(Boolean)
    .reduce((sum, pid) => sum + proportional(pid), 0)
  await Promise.all(sandboxes.map((one) => one.close()))
  return kilobytes / 1024
}

/** Boots a template and writes its snapshot while the machine is paused. */
async function snapshot() {
  const dir = mkdtempSync(join(tmpdir(), 'ringfence-bench-'))
  let boot = 0
  let write = 0
  const driver = emulator()
  const bootTemplate = driver.bootTemplate.bind(driver)
  driver.bootTemplate = async (...args) => {
    const begun = process.hrtime.bigint()
    const machine = await bootTemplate(...args)
    const save = machine.save.bind(machine)
    machine.channel.once('data', () => {
      boot = Number(process.hrtime.bigint() - begun) / 1e6
    })
    machine.save = async (state) => {
      write = await timed(() => save(state))
    }
    return machine
  }
  const { execFileSync } = await import('node:child_process')
  execFileSync('mkdir', ['-p', join(dir, 'images')])
  execFileSync('cp', ['-rl', join(testState(), 'images', 'microvm'), join(dir, 'images', 'microvm')])
  const backend = machines({ stateDir: dir, driver })
  await (await backend.open(plan())).close()
  const templates = join(dir, 'microvm', 'templates')
  const [name] = readdirSync(templates)
  const blocks = statSync(join(templates, name, 'memory')).blocks / 2048
  rmSync(dir, { recursive: true, force: true })
  return { boot, write, blocks }
}

function promise(name, ratio, most) {
  say(`  ${(ratio <= most ? 'met' : 'MISSED').padEnd(6)} ${name} = ${ratio.toFixed(3)} (target ${most})`)
}

await machineImages()
const cold = machines({ clones: false })
const cloned = machines()
const pooled = machines({ ready: 1 })
await first(cloned)
await first(pooled, 4000)
const standing = await cloned.open(planOf({ backend: 'microvm', read: [probe] }))
await standing.exec({ argv: ['/bin/sh', '-c', 'echo'] })
const times = { cold: [], clone: [], pool: [], exec: [], shell: [] }
for (let round = 0; round < rounds; round++) {
  times.cold.push(await first(cold))
  times.clone.push(await first(cloned))
  times.pool.push(await first(pooled, 4000))
  for (let count = 0; count < 10; count++) {
    times.exec.push(await timed(() => standing.exec({ argv: [probe] })))
    times.shell.push(await timed(() => standing.exec({ argv: ['/bin/sh', '-c', 'echo'] })))
  }
}
await standing.close()
const { boot, write, blocks } = await snapshot()
const megabytes = await idleMachines(cloned)
await pooled.close()

say(`machines, emulated (median of ${rounds})`)
for (const [name, text] of [
  ['cold', 'from nothing to the first output'],
  ['clone', 'clone to the first output'],
  ['pool', 'from the pool to the first output'],
  ['exec', 'warm exec, a static program'],
  ['shell', 'warm exec, a shell with its libraries'],
])
  say(`  ${text.padEnd(40)} ${median(times[name]).toFixed(1).padStart(9)} ms`)
say(`  ${'boot of a template'.padEnd(40)} ${boot.toFixed(1).padStart(9)} ms`)
say(
  `  ${'writing its snapshot'.padEnd(40)} ${write.toFixed(1).padStart(9)} ms, ${blocks.toFixed(0)} MB of memory`,
)
say(`  ${`${idle} idle clones`.padEnd(40)} ${megabytes.toFixed(0).padStart(9)} MB in all`)
promise('clone : from nothing', median(times.clone) / median(times.cold), 0.15)
promise('pool : from nothing', median(times.pool) / median(times.cold), 0.02)
goal(
  'microVM: from the pool ÷ from nothing',
  median(times.pool) / median(times.cold),
  percentile(times.pool, 0.99) / median(times.cold),
)
goal('microVM: warm exec of a shell', median(times.shell), percentile(times.shell, 0.99))
promise('snapshot : boot', write / boot, 0.1)
promise('warm exec : 25 ms', median(times.exec) / 25, 1)
promise(`${idle} idle clones : 4 GiB`, megabytes / 4096, 1)
