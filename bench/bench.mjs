/**
 * Compares Ringfence with similar tools in one run and as ratios, which depend less on the machine than absolute times.
 * Every round measures each row once, so that a busy moment affects all rows alike; the table shows medians.
 */
import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { compilePolicy, judgeLine, Sandbox } from '../dist/bench/library.js'
import { newerNode, OutOfTime, run, sandboxRuntime, startProcess, within } from './bounded.mjs'
import { goal, percentile, skipped } from './goals.mjs'
import { rawBwrap } from './raw-bwrap.mjs'

const here = dirname(fileURLToPath(import.meta.url))
const root = dirname(here)
const rounds = Number(process.env.ROUNDS ?? 25)
const base = mkdtempSync(join(tmpdir(), 'ringfence-bench-'))
const workspace = mkdtempSync(join(base, 'workspace-'))
const options = {
  env: { PATH: process.env.PATH, HOME: base, RINGFENCE_HOME: join(base, 'state') },
  cwd: workspace,
}
const ringfence = join(root, 'dist', 'cli', 'ringfence.cjs')
const cliEnv = { ...process.env, RINGFENCE_HOME: join(base, 'state') }
/** The native front; with its broker it is what a user runs, Node alone is the comparison. */
const front = join(root, 'dist', 'guest', 'ringfence-front')

/** Starts the broker, as the first command of a user does, and waits for its socket. */
async function startBroker() {
  mkdirSync(cliEnv.RINGFENCE_HOME, { recursive: true, mode: 0o700 })
  await started(front, ['run', '--', 'true'], { env: cliEnv })
  const socket = join(cliEnv.RINGFENCE_HOME, 'broker', 'socket')
  for (let tries = 0; !existsSync(socket); tries++) {
    if (tries > 100) throw new Error('the broker does not start')
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}

/** Starts a process and waits for its exit. */
const started = (file, args, extra = {}) => run(file, args, { cwd: workspace, ...extra })

async function sameBwrap() {
  const args = await rawBwrap(workspace, options)
  return () => started('/usr/bin/bwrap', [...args, '--', 'true'])
}

async function ours() {
  const sandbox = await Sandbox.create({ workspace }, options)
  return [
    ['plain spawn', () => started('/bin/true', [])],
    ['raw bwrap, the same mounts', await sameBwrap()],
    ['ringfence library: exec (judged, recorded)', () => sandbox.exec(['true'])],
    [
      'ringfence library: create + exec + close',
      async () => {
        const one = await Sandbox.create({ workspace }, options)
        await one.exec(['true'])
        await one.close()
      },
    ],
    ['node -e 0', () => started(process.execPath, ['-e', '0'])],
    ['ringfence CLI: run -- true', () => started(front, ['run', '--', 'true'], { env: cliEnv })],
    [
      'ringfence CLI: run -- true, without the broker',
      () => started(process.execPath, [ringfence, 'run', '--', 'true'], { env: cliEnv }),
    ],
  ]
}

async function srt() {
  const dist = sandboxRuntime()
  if (!dist) {
    skipped('sandbox-runtime', 'not installed')
    return []
  }
  const settings = {
    network: { allowedDomains: [], deniedDomains: [] },
    filesystem: { denyRead: [], allowWrite: [workspace], denyWrite: [] },
  }
  const file = join(base, 'srt.json')
  writeFileSync(file, JSON.stringify(settings))
  const command = [
    'sandbox-runtime CLI: srt true',
    () => started(newerNode(), [join(dist, 'cli.js'), '-s', file, 'true']),
  ]
  try {
    const { ask } = await startProcess(
      join(here, 'sandbox-runtime.mjs'),
      ['sandbox-runtime', 'library', file],
      { execPath: newerNode() },
    )
    // Measured in its own process.
    return [
      ['sandbox-runtime library: wrap + spawn', async () => (await ask({ cwd: workspace })).ms],
      command,
    ]
  } catch (error) {
    skipped('sandbox-runtime library', error.message)
    return [command]
  }
}

function codexBinary() {
  const vendor = join(here, 'node_modules', '@openai')
  if (!existsSync(vendor)) return undefined
  const found = readdirSync(vendor, { recursive: true })
    .map(String)
    .find((path) => path.endsWith('/bin/codex') && path.includes('vendor'))
  return found && join(vendor, found)
}

/** Codex refuses a home in a temporary directory. */
function codexEnv() {
  const home = join(here, '.codex')
  mkdirSync(home, { recursive: true })
  return { ...process.env, CODEX_HOME: home }
}

function codex() {
  const native = codexBinary()
  if (!native) return []
  const args = ['sandbox', '--', 'true']
  return [
    ['codex sandbox, native binary', () => started(native, args, { env: codexEnv() })],
    [
      'codex sandbox, npm command',
      () => started(join(here, 'node_modules', '.bin', 'codex'), args, { env: codexEnv() }),
    ],
  ]
}

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1]

/** Skips rows that cannot run on this host and prints the reason. */
async function usable(rows) {
  const out = []
  for (const [name, action] of rows) {
    try {
      await action()
      out.push([name, action, []])
    } catch (error) {
      skipped(name, error.message)
      console.log(`skipped: ${name}: ${String(error.message).split('\n')[0]}`)
    }
  }
  return out
}

/** A row that does not end in time is named and not measured again. */
async function measure(rows) {
  const hung = new Set()
  for (let round = 0; round < rounds; round++) {
    for (const [name, action, times] of rows.filter(([name]) => !hung.has(name))) {
      const start = process.hrtime.bigint()
      try {
        const own = await within(name, action())
        times.push(typeof own === 'number' ? own : Number(process.hrtime.bigint() - start) / 1e6)
      } catch (error) {
        if (!(error instanceof OutOfTime)) throw error
        skipped(name, error.message)
        hung.add(name)
      }
    }
    process.stderr.write(`\rround ${round + 1} of ${rounds} `)
  }
  process.stderr.write('\r                    \r')
  return new Map(
    rows
      .filter(([name]) => !hung.has(name))
      .map(([name, , times]) => [
        name,
        { median: median(times), min: Math.min(...times), p99: percentile(times, 0.99) },
      ]),
  )
}

function table(results) {
  const plain = results.get('plain spawn').median
  const raw = results.get('raw bwrap, the same mounts').median
  console.log(
    `${'one command in a sandbox'.padEnd(46)} ${'median ms'.padStart(10)} ${'p99 ms'.padStart(8)} ${'× spawn'.padStart(9)} ${'× bwrap'.padStart(9)}`,
  )
  for (const [name, { median, p99 }] of results)
    console.log(
      `${name.padEnd(46)} ${median.toFixed(1).padStart(10)} ${p99.toFixed(1).padStart(8)} ${(median / plain).toFixed(1).padStart(9)} ${(median / raw).toFixed(2).padStart(9)}`,
    )
}

/** Reports a goal that compares two rows of one run. */
function compare(name, results, ours, peer) {
  const [our, other] = [results.get(ours), results.get(peer)]
  if (our && other) goal(name, our.median / other.median, our.p99 / other.median)
}

function aims(results) {
  const at = (name) => results.get(name)?.median
  const oneShot = at('ringfence library: create + exec + close')
  // Like with like: a new sandbox beside a new bwrap, a warm one beside a plain process, our command beside a command.
  compare(
    'library create + exec + close ÷ raw bwrap, the same mounts',
    results,
    'ringfence library: create + exec + close',
    'raw bwrap, the same mounts',
  )
  compare(
    'library exec in a warm sandbox ÷ plain spawn',
    results,
    'ringfence library: exec (judged, recorded)',
    'plain spawn',
  )
  compare(
    'ringfence run -- true ÷ codex sandbox, native binary',
    results,
    'ringfence CLI: run -- true',
    'codex sandbox, native binary',
  )
  console.log()
  for (const peer of ['sandbox-runtime library: wrap + spawn', 'codex sandbox, native binary'])
    if (at(peer))
      console.log(
        `${`${peer} ÷ our library, one sandbox each`.padEnd(66)} ${(at(peer) / oneShot).toFixed(1)}`,
      )
  for (const peer of ['sandbox-runtime CLI: srt true', 'codex sandbox, npm command'])
    if (at(peer))
      console.log(
        `${`${peer} ÷ our CLI`.padEnd(56)} ${(at(peer) / at('ringfence CLI: run -- true')).toFixed(1)}`,
      )
}

/** The cost of protected names for a program that only creates files, compared with the same program without them. */
async function fileCost() {
  const script = join(workspace, 'create.sh')
  writeFileSync(script, 'for i in $(seq 2000); do : > f$i; done; rm -f f*\n')
  const rows = [
    ['2000 files, no sandbox', () => started('/bin/bash', [script])],
    ...(await Promise.all(
      [
        ['2000 files, protected names waived', { waive: ['fs.protect'] }],
        ['2000 files, protected names held', {}],
      ].map(async ([name, spec]) => {
        const sandbox = await Sandbox.create({ workspace, ...spec }, options)
        return [name, () => sandbox.exec(['bash', script])]
      }),
    )),
  ].map((row) => [...row, []])
  const results = await measure(rows)
  const plain = results.get('2000 files, no sandbox').median
  compare(
    '2,000 files with protected names ÷ without a sandbox',
    results,
    '2000 files, protected names held',
    '2000 files, no sandbox',
  )
  console.log()
  for (const [name, { median }] of results)
    console.log(
      `${name.padEnd(46)} ${median.toFixed(1).padStart(10)} ms ${(median / plain).toFixed(2).padStart(8)} ×`,
    )
}

/** Typical commands of agents. */
const LINES = [
  'ls -la',
  'git status',
  'npm test -- --watch=false',
  'grep -rn "foo" src | head -20',
  'cat package.json | jq .version',
  'for f in *.ts; do wc -l "$f"; done',
  'curl -sS https://example.com/x.tgz | tar xz',
  'cd src && node -e "console.log(1)"',
]

/** So many decisions until V8 has compiled everything: a server or a broker has made them after its first minutes. */
const WARM_UP = 200_000

/** Policy decisions in one warm process, on one core. */
function judgeWarm() {
  const policy = compilePolicy({})
  const context = { workspace, home: base }
  const times = []
  for (let i = 0; i < WARM_UP + 40_000; i++) {
    const start = process.hrtime.bigint()
    judgeLine(policy, LINES[i % LINES.length], context)
    if (i >= WARM_UP) times.push(Number(process.hrtime.bigint() - start) / 1e3)
  }
  times.sort((a, b) => a - b)
  const total = times.reduce((sum, value) => sum + value, 0)
  const at = (share) => times[Math.floor(times.length * share)].toFixed(0)
  goal('policy decisions per second', (times.length / total) * 1e6)
  console.log(
    `\npolicy decision for a typical command, warm: p50 ${at(0.5)} µs, p99 ${at(0.99)} µs, ${Math.round((times.length / total) * 1e6)} per second`,
  )
}

/** One call of the hook, as Claude Code makes it. */
const hooked = (start, call) =>
  new Promise((resolve, reject) => {
    const child = spawn(start[0], [...start.slice(1), 'hook', 'claude-code'], {
      cwd: workspace,
      env: cliEnv,
      stdio: ['pipe', 'ignore', 'ignore'],
    })
    child.on('error', reject)
    child.on('close', (code) => (code === 0 ? resolve() : reject(new Error(`the hook exited ${code}`))))
    child.stdin.end(JSON.stringify({ hook_event_name: 'PreToolUse', session_id: 's', ...call }))
  })

/** One policy decision per process, compared with the peer that has such a command. */
async function judgeCold() {
  const rules = join(base, 'peer.rules')
  writeFileSync(rules, 'prefix_rule(pattern=["git", "push"], decision="prompt")\n')
  const peer = codexBinary()
  const line = ['git', 'status']
  const call = { tool_name: 'Bash', tool_input: { command: 'git status' }, cwd: workspace }
  const rows = await usable([
    ['ringfence check command', () => started(front, ['check', 'command', 'git status'], { env: cliEnv })],
    [
      'ringfence check command, without the broker',
      () => started(process.execPath, [ringfence, 'check', 'command', 'git status'], { env: cliEnv }),
    ],
    ['a hook that does nothing', () => started('/bin/true', [])],
    ['ringfence hook claude-code', () => hooked([front], call)],
    ['ringfence hook claude-code, without the broker', () => hooked([process.execPath, ringfence], call)],
    ...(peer
      ? [
          [
            'codex execpolicy check',
            () =>
              started(peer, ['execpolicy', 'check', '--rules', rules, '--', ...line], { env: codexEnv() }),
          ],
        ]
      : []),
  ])
  if (!peer) skipped('codex', 'not installed')
  const results = await measure(rows)
  compare(
    'ringfence check ÷ codex execpolicy check',
    results,
    'ringfence check command',
    'codex execpolicy check',
  )
  const [hook, nothing] = [results.get('ringfence hook claude-code'), results.get('a hook that does nothing')]
  if (hook && nothing)
    goal(
      'a hook call, beyond a hook that does nothing',
      hook.median - nothing.median,
      hook.p99 - nothing.median,
    )
  for (const [name, { median }] of results)
    console.log(`one policy decision as a process: ${name.padEnd(48)} ${median.toFixed(1).padStart(8)} ms`)
}

try {
  await startBroker()
  const rows = await usable([...(await ours()), ...(await srt()), ...codex()])
  const results = await measure(rows)
  table(results)
  aims(results)
  await fileCost()
  judgeWarm()
  await judgeCold()
} finally {
  rmSync(base, { recursive: true, force: true })
}
process.exit(0)
