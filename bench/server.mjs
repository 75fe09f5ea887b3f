/**
 * The control plane through the SDK over HTTP, with real sandboxes, and every record synced to disk before the response.
 * `FULL=1` adds the long measurements.
 */
import { spawn } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { RingfenceClient } from '../dist/client.js'
import { withFloor } from './floor.mjs'
import { floor, goal } from './goals.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const base = mkdtempSync(join(tmpdir(), 'ringfence-bench-server-'))
const full = process.env.FULL === '1' || process.env.RINGFENCE_FULL === '1'
const rounds = Number(process.env.ROUNDS ?? 40)

const started = []

async function start(name, config) {
  const home = join(base, name)
  const file = join(base, `${name}.toml`)
  writeFileSync(file, config)
  const program = join(root, 'dist', 'cli', 'ringfence.cjs')
  const child = spawn(
    process.execPath,
    [program, 'serve', '--json', '--print-key', '--port', '0', '--config', file],
    {
      env: { ...process.env, HOME: base, RINGFENCE_HOME: home },
      stdio: ['ignore', 'pipe', 'ignore'],
    },
  )
  started.push(child)
  const line = await new Promise((resolve) => createInterface({ input: child.stdout }).once('line', resolve))
  const { url, key, pid } = JSON.parse(line)
  const client = new RingfenceClient({ url, apiKey: key, retries: 8 })
  const stop = () =>
    new Promise((resolve) => {
      child.once('exit', resolve)
      child.kill('SIGTERM')
    })
  const metric = async (metric) => {
    const text = await (await fetch(`${url}/metrics`, { headers: { authorization: `Bearer ${key}` } })).text()
    return Number(new RegExp(`^${metric} (\\S+)$`, 'm').exec(text)?.[1] ?? Number.NaN)
  }
  return { client, pid, stop, metric }
}

const at = (times, share) =>
  [...times].sort((a, b) => a - b)[Math.min(times.length - 1, Math.floor(times.length * share))]

async function timed(work) {
  const begin = performance.now()
  await work()
  return performance.now() - begin
}

const rows = []
const row = (name, value, unit, aim) => {
  rows.push([name, value, unit, aim])
  const shown = `${value < 10 ? value.toFixed(1) : Math.round(value)} ${unit}`
  console.log(`${name.padEnd(58)} ${shown.padStart(12)}   ${aim === undefined ? '' : `aim ≤ ${aim} ${unit}`}`)
}

/** So many creates until V8 has compiled what they use: a server has made them after its first minutes. */
const WARM_UP = 150

async function warmUp(client) {
  for (let round = 0; round < WARM_UP; round++) await first(client)
}

/** Creation and first command of one sandbox, as ComputeSDK measures it. */
async function first(client, spec) {
  let sandbox
  const ms = await timed(async () => {
    sandbox = await client.create(spec)
    await sandbox.exec(['true'])
  })
  await sandbox.close()
  return ms
}

/** `pauseMs` lets a pool fill up again before the next create. */
async function interactive(client, pauseMs = 0) {
  const times = []
  for (let round = 0; round < rounds; round++) {
    times.push(await first(client))
    await new Promise((resolve) => setTimeout(resolve, pauseMs))
  }
  return times
}

/** The same with a writable root, in turns with the read-only one. */
async function writableRoot(client) {
  const times = { plain: [], writable: [] }
  await first(client, { root: 'writable' })
  for (let round = 0; round < rounds; round++) {
    times.plain.push(await first(client))
    times.writable.push(await first(client, { root: 'writable' }))
  }
  const plain = at(times.plain, 0.5)
  row('time to interactive with a writable root ÷ without', at(times.writable, 0.5) / plain, '×', 1.5)
  goal(
    'HTTP: create + first command with a writable root ÷ without',
    at(times.writable, 0.5) / plain,
    at(times.writable, 0.99) / plain,
  )
}

async function burst(client, count) {
  const times = []
  const made = await Promise.all(
    Array.from({ length: count }, async () => {
      let sandbox
      times.push(
        await timed(async () => {
          sandbox = await client.create()
          await sandbox.exec(['true'])
        }),
      )
      return sandbox
    }),
  )
  await Promise.all(made.map((one) => one.close()))
  return times
}

const leftovers = () => ({
  processes: readdirSync('/proc').filter((name) => /^\d+$/.test(name) && isAgent(name)).length,
  mounts: readFileSync('/proc/self/mountinfo', 'utf8').split('\n').length,
})
const isAgent = (pid) => {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('ringfence-agent')
  } catch {
    return false
  }
}
const residentKb = (pid) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])
const descriptors = (pid) => readdirSync(`/proc/${pid}/fd`).length

async function cycles(server, count) {
  const before = leftovers()
  let left = count
  const worker = async () => {
    while (left-- > 0) {
      const sandbox = await server.client.create()
      await sandbox.exec(['true'])
      await sandbox.close()
    }
  }
  const run = () => Promise.all(Array.from({ length: 4 }, worker))
  // Long enough that V8 has compiled everything: before that, memory grows without a leak.
  left = 1000
  await run()
  const [warm, fds] = [residentKb(server.pid), descriptors(server.pid)]
  left = count
  const ms = await timed(run)
  row(`${count} create → exec → destroy, cycles per second`, count / (ms / 1000), '/s')
  row('memory growth per cycle', Math.max(0, residentKb(server.pid) - warm) / count, 'KiB', 1)
  row(
    'event-loop delay p99 during the cycles',
    (await server.metric('ringfence_loop_delay_seconds\\{quantile="0.99"\\}')) * 1000,
    'ms',
    20,
  )
  const after = leftovers()
  row('left behind: processes', after.processes - before.processes, '', 0)
  row('left behind: mounts', Math.max(0, after.mounts - before.mounts), '', 0)
  row('left behind: descriptors', Math.max(0, descriptors(server.pid) - fds - 8), '', 0)
}

/** A file of 100 MB through the API, beside `cp` of the same file. */
async function files(client) {
  const bytes = new Uint8Array(100 * 1024 * 1024).fill(97)
  const [from, to] = [join(base, 'large'), join(base, 'copy')]
  writeFileSync(from, bytes)
  const sandbox = await client.create()
  const { stdout: directory } = await sandbox.exec(['pwd'])
  const path = `${directory.trim()}/large`
  const times = { cp: [], write: [], read: [] }
  for (let round = 0; round < 5; round++) {
    times.cp.push(await timed(() => cp(from, to)))
    times.write.push(await timed(() => sandbox.files.write(path, bytes)))
    times.read.push(await timed(() => drained(sandbox.files, path)))
  }
  await sandbox.close()
  const ratio = (name) => at(times[name], 0.5) / at(times.cp, 0.5)
  row('write 100 MB ÷ cp', ratio('write'), '×', 3)
  row('read 100 MB ÷ cp', ratio('read'), '×', 3)
  goal('HTTP: write 100 MB ÷ cp', ratio('write'))
  goal('HTTP: read 100 MB ÷ cp', ratio('read'))
}

/** Reads a file as a stream and keeps nothing of it. */
async function drained(files, path) {
  for await (const _ of await files.readStream(path));
}

const cp = (from, to) =>
  new Promise((resolve, reject) => {
    spawn('cp', [from, to]).on('close', (code) => (code === 0 ? resolve() : reject(new Error('cp failed'))))
  })

/** What remains without Ringfence's own code, for the rows above. */
async function floors(bare) {
  const times = []
  for (let round = 0; round < rounds; round++) times.push(await timed(bare.first))
  floor('HTTP: create + first command, p50', at(times, 0.5))
  const crowd = await Promise.all(Array.from({ length: 100 }, () => timed(bare.first)))
  floor('HTTP: burst of 100, p95', at(crowd, 0.95))
  const bytes = new Uint8Array(100 * 1024 * 1024).fill(97)
  const [from, to] = [join(base, 'large'), join(base, 'copy')]
  const files = { cp: [], write: [], read: [] }
  for (let round = 0; round < 5; round++) {
    files.cp.push(await timed(() => cp(from, to)))
    files.write.push(await timed(() => bare.write(bytes)))
    files.read.push(await timed(bare.read))
  }
  for (const name of ['write', 'read'])
    floor(`HTTP: ${name} 100 MB ÷ cp`, at(files[name], 0.5) / at(files.cp, 0.5))
}

async function listing(client) {
  const page = async () => {
    const times = []
    for (let round = 0; round < 30; round++) times.push(await timed(() => client.list({ limit: 10 })))
    return at(times, 0.5)
  }
  return page()
}

try {
  const server = await start('plain', '[server]\nmax_sandboxes_per_key = 500\nrequests_per_second = 100000\n')
  await (await server.client.create()).close()
  const few = await listing(server.client)
  await warmUp(server.client)
  const alone = await interactive(server.client)
  row('time to interactive, p50', at(alone, 0.5), 'ms', 40)
  goal('HTTP: create + first command, p50', at(alone, 0.5), at(alone, 0.99))
  await writableRoot(server.client)
  const warm = await server.client.create()
  const times = []
  for (let round = 0; round < rounds * 2; round++) times.push(await timed(() => warm.exec(['true'])))
  row('exec in a warm sandbox, p50', at(times, 0.5), 'ms', 8)
  row('exec in a warm sandbox, p99', at(times, 0.99), 'ms')
  await warm.close()
  const crowd = await burst(server.client, 100)
  row('burst of 100, p95', at(crowd, 0.95), 'ms', 1500)
  goal('HTTP: burst of 100, p95', at(crowd, 0.95), at(crowd, 0.99))
  await files(server.client)
  await withFloor(base, ['true'], floors)
  await cycles(server, full ? 10_000 : 3000)
  row('listing a page, few records, p50', few, 'ms')
  row(`listing a page, ${full ? '10,000' : '500'} records, p50`, await listing(server.client), 'ms')
  await server.stop()
  const pooled = await start('pooled', '[server]\npool = [{ size = 4 }]\n')
  await warmUp(pooled.client)
  const emptied = await interactive(pooled.client)
  row('time to interactive with a pool that is empty by now, p50', at(emptied, 0.5), 'ms')
  const taken = await interactive(pooled.client, 200)
  row('time to interactive with a pool, p50', at(taken, 0.5), 'ms', 5)
  goal('HTTP: create + first command with a pool, p50', at(taken, 0.5), at(taken, 0.99))
  await pooled.stop()
  console.log('published elsewhere, for comparison: Daytona 186 ms, E2B 491 ms')
} finally {
  for (const child of started) child.kill('SIGKILL')
  rmSync(base, { recursive: true, force: true })
}
process.exit(0)
