/**
 * Compares containers with the engines' own CLIs in one run and as ratios: same image, same limits, same daemon.
 * Every round measures each row once; the table shows medians.
 */
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { docker, gvisor, planOf, startDocker, testImages, testState, whyNot } from '../dist/bench/library.js'
import { OutOfTime, run } from './bounded.mjs'
import { goal, percentile, skipped } from './goals.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const agent = join(root, 'dist', 'guest', 'ringfence-agent')
const rounds = Number(process.env.ROUNDS ?? 15)
const probePlan = () => planOf({ limits: { wallMs: 10_000 } })
const base = mkdtempSync(join(tmpdir(), 'ringfence-bench-'))

const started = (file, args, output = 'pipe') => run(file, args, { output })

const timed = async (work) => {
  const before = process.hrtime.bigint()
  await work()
  return Number(process.hrtime.bigint() - before) / 1e6
}

/** Only the time that the caller waits counts; closing a sandbox is not measured. A peer that hangs is named and left out. */
async function measure(rows) {
  const times = new Map(rows.map(([name]) => [name, []]))
  for (let round = 0; round < rounds + 2; round++)
    for (const [name, work, after] of rows.filter(([name]) => times.has(name))) {
      try {
        const ms = await timed(work)
        if (round >= 2) times.get(name).push(ms)
      } catch (error) {
        if (!(error instanceof OutOfTime)) throw error
        skipped(name, error.message)
        times.delete(name)
      }
      await after?.()
    }
  return new Map(
    [...times].map(([name, all]) => [name, { median: percentile(all, 0.5), p99: percentile(all, 0.99) }]),
  )
}

function show(title, results, promises) {
  process.stdout.write(`\n${title} (median of ${rounds})\n`)
  for (const [name, { median, p99 }] of results)
    process.stdout.write(
      `  ${name.padEnd(48)} ${median.toFixed(1).padStart(8)} ms   p99 ${p99.toFixed(1)} ms\n`,
    )
  for (const [name, peer, most] of promises) {
    const beside = results.get(peer)?.median
    if (beside === undefined) continue
    const ratio = results.get(name)?.median / beside
    if (name === 'ringfence gvisor: create + first command' && peer === 'runsc run')
      goal('gVisor: create + first command ÷ runsc run', ratio, results.get(name).p99 / beside)
    const verdict = most === undefined ? '' : ratio <= most ? 'met' : 'MISSED'
    const promise = most === undefined ? 'no target' : `target ${most}`
    process.stdout.write(`  ${verdict.padEnd(6)} ${name} : ${peer} = ${ratio.toFixed(2)} (${promise})\n`)
  }
}

const settle = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

/** Opens a sandbox and runs one command; closing it is not measured. */
function opened(backend, plan, pause = 0) {
  let sandbox
  return [
    async () => {
      sandbox = await backend.open(plan())
      await sandbox.exec({ argv: ['true'] })
    },
    async () => {
      await sandbox.close()
      await settle(pause)
    },
  ]
}

async function dockerRows() {
  const engine = await startDocker()
  const shared = { agent, probePlan, images: testImages(), stateDir: testState(), sockets: [engine.socket] }
  const names = { owner: 'bench', epoch: '0-0' }
  const cold = docker({ ...shared, ...names })
  const warm = docker({ ...shared, ...names, ready: 1 })
  const plan = () => planOf({ backend: 'docker' })
  const standing = await cold.open(plan())
  const cli = ['-H', `unix://${engine.socket}`]
  const hard = [
    '--network',
    'none',
    '--read-only',
    '--cap-drop',
    'ALL',
    '--security-opt',
    'no-new-privileges',
  ]
  const held = ['--memory', '512m', '--pids-limit', '1024']
  await started('docker', [
    ...cli,
    'run',
    '-d',
    '--name',
    'peer',
    ...hard,
    'ringfence/default',
    'sleep',
    '10000',
  ])
  try {
    const medians = await measure([
      [
        'docker run',
        () => started('docker', [...cli, 'run', '--rm', ...hard, ...held, 'ringfence/default', 'true']),
      ],
      ['ringfence docker: create + first command', ...opened(cold, plan)],
      ['ringfence docker: the same, made beforehand', ...opened(warm, plan, 700)],
      ['docker exec', () => started('docker', [...cli, 'exec', 'peer', 'true'])],
      ['ringfence docker: exec', () => standing.exec({ argv: ['true'] })],
    ])
    show('containers', medians, [
      ['ringfence docker: create + first command', 'docker run', 1.1],
      ['ringfence docker: the same, made beforehand', 'docker run', 0.1],
      ['ringfence docker: exec', 'docker exec', 0.1],
    ])
  } finally {
    await standing.close()
    await warm.close()
    await started('docker', [...cli, 'rm', '-f', 'peer'])
    await engine.close()
  }
}

/** A minimal OCI bundle that runs a program of this host. */
function plainBundle() {
  const dir = join(base, 'bundle')
  for (const name of ['proc', 'usr', 'tmp']) mkdirSync(join(dir, 'root', name), { recursive: true })
  for (const name of ['bin', 'lib', 'lib64']) symlinkSync(`usr/${name}`, join(dir, 'root', name))
  const config = {
    ociVersion: '1.0.2',
    process: { terminal: false, user: { uid: 0, gid: 0 }, args: ['/bin/true'], env: [], cwd: '/' },
    root: { path: 'root', readonly: true },
    mounts: [
      { destination: '/proc', type: 'proc', source: 'proc' },
      { destination: '/tmp', type: 'tmpfs', source: 'tmpfs' },
      { destination: '/usr', type: 'bind', source: '/usr', options: ['bind', 'ro'] },
    ],
    linux: { namespaces: ['pid', 'network', 'ipc', 'uts', 'mount'].map((type) => ({ type })) },
  }
  writeFileSync(join(dir, 'config.json'), JSON.stringify(config))
  return dir
}

async function gvisorRows() {
  const backend = gvisor({ agent, probePlan, images: testImages(), stateDir: testState() })
  const plan = () => planOf({ backend: 'gvisor' })
  const warm = gvisor({ agent, probePlan, images: testImages(), stateDir: testState(), ready: 1 })
  const standing = await backend.open(plan())
  const bundle = plainBundle()
  const sleeper = join(base, 'sleeper')
  cpSync(bundle, sleeper, { recursive: true, verbatimSymlinks: true })
  const config = JSON.parse(readFileSync(join(sleeper, 'config.json'), 'utf8'))
  config.process.args = ['/bin/sleep', '10000']
  writeFileSync(join(sleeper, 'config.json'), JSON.stringify(config))
  let count = 0
  const flags = ['--root', join(base, 'runsc'), '--network=none']
  await started('runsc', [...flags, 'run', '--detach', '--bundle', sleeper, 'sleeper'], 'ignore')
  try {
    const medians = await measure([
      ['runsc run', () => started('runsc', [...flags, 'run', '--bundle', bundle, `peer-${count++}`])],
      ['ringfence gvisor: create + first command', ...opened(backend, plan)],
      ['ringfence gvisor: the same, made beforehand', ...opened(warm, plan, 700)],
      ['runsc exec', () => started('runsc', [...flags, 'exec', 'sleeper', '/bin/true'])],
      ['ringfence gvisor: exec', () => standing.exec({ argv: ['true'] })],
    ])
    show('gvisor', medians, [
      ['ringfence gvisor: create + first command', 'runsc run', 1.1],
      ['ringfence gvisor: the same, made beforehand', 'runsc run', 0.1],
      ['ringfence gvisor: exec', 'runsc run', 0.1],
      // No target: `execve` of a dynamic program alone takes about a tenth of this time in gVisor (docs/containers.md).
      ['ringfence gvisor: exec', 'runsc exec', undefined],
    ])
  } finally {
    await standing.close()
    await warm.close()
    await started('runsc', [...flags, 'delete', '--force', 'sleeper'])
  }
}

try {
  for (const [name, rows] of [
    ['docker', dockerRows],
    ['gvisor', gvisorRows],
  ]) {
    const reason =
      whyNot(name) ?? (name === 'docker' && !existsSync('/usr/bin/docker') ? 'no docker program' : '')
    if (reason) {
      skipped(name, reason)
      process.stdout.write(`skipped: ${name}: ${reason}\n`)
    } else await rows()
  }
} finally {
  rmSync(base, { recursive: true, force: true })
}
