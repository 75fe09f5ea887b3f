/**
 * Time to interactive as ComputeSDK measures it: from the call that creates a sandbox to the end of its first command,
 * through E2B's unmodified client over HTTP. No pool; one after the other, staggered by 200 ms, then all at once.
 */
import { spawn, spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { OutOfTime, within } from './bounded.mjs'
import { withFloor } from './floor.mjs'
import { floor, goal, skipped } from './goals.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const rounds = Number(process.env.ROUNDS ?? 50)
const burst = Number(process.env.BURST ?? 100)
const clients = join(root, 'test', 'e2b')
if (!existsSync(join(clients, 'node_modules', 'e2b'))) {
  skipped('E2B’s client', 'not installed: npm test does it')
  console.log('E2B’s client is not installed (npm test does it): nothing to measure')
  process.exit(0)
}
const home = mkdtempSync(join(tmpdir(), 'ringfence-bench-e2b-'))
const env = { ...process.env, RINGFENCE_HOME: join(home, 'state') }
const ringfence = join(root, 'dist', 'cli', 'ringfence.cjs')
const key = JSON.parse(
  spawnSync(process.execPath, [ringfence, 'key', 'create', '--e2b', '--json'], { env, encoding: 'utf8' })
    .stdout,
)
const server = spawn(process.execPath, [ringfence, 'serve', '--port', '0'], {
  env,
  stdio: ['ignore', 'pipe', 'inherit'],
})
const url = await new Promise((resolve) => {
  let said = ''
  server.stdout.on('data', (chunk) => {
    said += chunk
    const found = /http:\/\/127\.0\.0\.1:\d+/.exec(said)
    if (found) resolve(found[0])
  })
})
const { Sandbox } = await import(
  pathToFileURL(createRequire(join(clients, 'package.json')).resolve('e2b')).href
)
const options = { apiKey: key.key, apiUrl: url, sandboxUrl: url }

/** From creating one sandbox to the output of its first command. */
const interactive = () => within('E2B’s client', createAndRun())

async function createAndRun() {
  const started = performance.now()
  const sandbox = await Sandbox.create(options)
  const created = performance.now()
  await sandbox.commands.run('node -v')
  return { sandbox, create: created - started, total: performance.now() - started }
}

const at = (values, share) => [...values].sort((a, b) => a - b)[Math.floor(values.length * share)] ?? 0
const row = (name, values) =>
  console.log(
    `${name.padEnd(52)} p50 ${at(values, 0.5).toFixed(1)} ms   p95 ${at(values, 0.95).toFixed(1)} ms   p99 ${at(values, 0.99).toFixed(1)} ms`,
  )

const STAGGER_MS = 200

/** Many sandboxes, each started `delay` after the one before; all live until the last has run its command. */
async function together(name, delay) {
  const all = await Promise.allSettled(
    Array.from({ length: burst }, async (_, index) => {
      await new Promise((resolve) => setTimeout(resolve, index * delay))
      return interactive()
    }),
  )
  const fine = all.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []))
  const times = fine.map(({ total }) => total)
  row(`${name}, ${fine.length} succeeded`, times)
  const failed = all.find((one) => one.status === 'rejected')
  if (failed) skipped(`E2B’s client, ${name}: ${burst - fine.length} sandboxes`, failed.reason.message)
  if (delay === 0 && burst === 100) goal('E2B client: burst of 100, p95', at(times, 0.95), at(times, 0.99))
  await Promise.all(fine.map((one) => one.sandbox.kill()))
}

/** The same burst without Ringfence's own code. */
async function bareBurst({ first }) {
  const times = await Promise.all(
    Array.from({ length: burst }, async () => {
      const started = performance.now()
      await first()
      return performance.now() - started
    }),
  )
  row('burst of plain bubblewrap from a bare Node server', times)
  if (burst === 100) floor('E2B client: burst of 100, p95', at(times, 0.95))
}

const FILE_BYTES = 100 * 1024 * 1024

/** A file of 100 MB through the client, beside `cp` of the same file. */
async function files(sandbox) {
  const bytes = new Uint8Array(FILE_BYTES).fill(97)
  const [from, to] = [join(home, 'large'), join(home, 'copy')]
  writeFileSync(from, bytes)
  const times = { cp: [], write: [], read: [] }
  const clientTimes = { cp: [], write: [], read: [] }
  const timed = async (name, work) => {
    const [started, used] = [performance.now(), process.cpuUsage()]
    await within(`E2B’s client: ${name} 100 MB`, work())
    times[name].push(performance.now() - started)
    const { user, system } = process.cpuUsage(used)
    clientTimes[name].push((user + system) / 1000)
  }
  for (let round = 0; round < 5; round++) {
    await timed('cp', async () => spawnSync('cp', [from, to]))
    await timed('write', () => sandbox.files.write('large', bytes.buffer))
    await timed('read', async () => {
      for await (const _ of await sandbox.files.read('large', { format: 'stream' }));
    })
  }
  for (const name of ['write', 'read']) {
    row(`${name} 100 MB`, times[name])
    row(`${name} 100 MB: processor time of the client alone`, clientTimes[name])
    goal(`E2B client: ${name} 100 MB ÷ cp`, at(times[name], 0.5) / at(times.cp, 0.5))
    floor(`E2B client: ${name} 100 MB ÷ cp`, at(clientTimes[name], 0.5) / at(times.cp, 0.5))
  }
}

try {
  for (let warm = 0; warm < 5; warm++) await (await interactive()).sandbox.kill()
  const totals = []
  const creates = []
  for (let round = 0; round < rounds; round++) {
    const { sandbox, create, total } = await interactive()
    totals.push(total)
    creates.push(create)
    await sandbox.kill()
  }
  console.log('\nE2B’s client against our server (bubblewrap, no pool); published: Daytona 186, E2B 491 ms')
  row('create', creates)
  row('create + first command (`node -v`)', totals)
  const { sandbox } = await interactive()
  const warm = []
  for (let round = 0; round < rounds; round++) {
    const started = performance.now()
    await within('E2B’s client', sandbox.commands.run('true'))
    warm.push(performance.now() - started)
  }
  row('a command in a warm sandbox (`true`)', warm)
  await files(sandbox)
  await sandbox.kill()
  await together(`staggered: ${burst}, one every ${STAGGER_MS} ms`, STAGGER_MS)
  await together(`burst of ${burst}`, 0)
  await withFloor(home, ['/bin/bash', '-l', '-c', 'node -v'], bareBurst)
} catch (error) {
  if (!(error instanceof OutOfTime)) throw error
  skipped('E2B’s client', error.message)
  console.log(error.message)
} finally {
  server.kill('SIGTERM')
  await new Promise((resolve) => server.on('exit', resolve))
  rmSync(home, { recursive: true, force: true })
}
process.exit()
