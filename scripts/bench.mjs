/**
 * `npm run bench [-- --json] [-- --only PART]`: installs the tools to compare with, if they are available, measures all in one
 * run, prints the goals last and, after a complete run, adds a line to bench/history.jsonl and updates docs/performance.md.
 */
import { spawnSync } from 'node:child_process'
import { appendFileSync, existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { collect, goalTable, historyLine } from '../bench/goals.mjs'
import { writePerformance } from './performance.mjs'
import { root, setup } from './setup.mjs'

setup()

const bench = join(root, 'bench')
const wanted = ['@openai', '@anthropic-ai', 'sql.js']
if (wanted.some((name) => !existsSync(join(bench, 'node_modules', name)))) {
  process.stdout.write('peers and modules: installing (about 530 MB)\n')
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
  const { status } = spawnSync(process.execPath, [join(bench, part)], {
    cwd: root,
    stdio: ['inherit', json ? 'ignore' : 'inherit', 'inherit'],
    env: { ...process.env, RINGFENCE_BENCH_RESULTS: results },
  })
  process.exitCode ||= status ?? 1
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
