/** The goals of the benchmarks, one table for all parts: what was measured, what misses its goal, what was not measured. */
import { execFileSync } from 'node:child_process'
import { appendFileSync, existsSync, readFileSync } from 'node:fs'
import { cpus, release, totalmem } from 'node:os'

/** Name → goal. `most`: the value must not be above it; `least`: not below. */
export const GOALS = {
  'ringfence run -- true ÷ codex sandbox, native binary': { most: 0.5 },
  'ringfence check ÷ codex execpolicy check': { most: 1 },
  'library create + exec + close ÷ raw bwrap, the same mounts': { most: 1.3 },
  'library exec in a warm sandbox ÷ plain spawn': { most: 1.3 },
  'a hook call, beyond a hook that does nothing': { most: 25, unit: 'ms' },
  '2,000 files with protected names ÷ without a sandbox': { most: 1.1 },
  'policy decisions per second': { least: 100_000 },
  'HTTP: create + first command, p50': { most: 12, unit: 'ms' },
  'HTTP: create + first command with a pool, p50': { most: 5, unit: 'ms' },
  'HTTP: burst of 100, p95': { most: 800, unit: 'ms' },
  'E2B client: burst of 100, p95': { most: 800, unit: 'ms' },
  'HTTP: write 100 MB ÷ cp': { most: 3 },
  'HTTP: read 100 MB ÷ cp': { most: 3 },
  'E2B client: write 100 MB ÷ cp': { most: 3 },
  'E2B client: read 100 MB ÷ cp': { most: 3 },
  'HTTP: create + first command with a writable root ÷ without': { most: 1.5 },
  'metered ÷ unmetered WebAssembly, kernels': { most: 1.08 },
  'metered ÷ unmetered WebAssembly, fib': { most: 1.25 },
  'metered ÷ unmetered WebAssembly, indirect': { most: 1.25 },
  'metered ÷ unmetered WebAssembly, real modules': { most: 1.05 },
  'gVisor: create + first command ÷ runsc run': { most: 1 },
  'microVM: from the pool ÷ from nothing': { most: 0.01 },
  'microVM: warm exec of a shell': { most: 15, unit: 'ms' },
  'proxy from a sandbox: direct ÷ ours, new connections': { most: 1.6 },
  'proxy from a sandbox: direct ÷ ours, bulk': { most: 1.2 },
}

function note(entry) {
  const file = process.env.RINGFENCE_BENCH_RESULTS
  if (file) appendFileSync(file, `${JSON.stringify(entry)}\n`)
}

/** The value at a share of the sorted values. */
export const percentile = (values, share) =>
  [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * share))]

/** Reports the value of a goal; `p99` if it has one: for a ratio, our 99th percentile ÷ the peer's median. */
export function goal(name, value, p99) {
  if (!Object.hasOwn(GOALS, name)) throw new Error(`no goal is called \`${name}\``)
  if (Number.isFinite(value)) note({ name, value, ...(Number.isFinite(p99) ? { p99 } : {}) })
}

/** Reports the least value that a goal's row can have with Node and the same tools, measured in the same run. */
export function floor(name, value) {
  if (!Object.hasOwn(GOALS, name)) throw new Error(`no goal is called \`${name}\``)
  if (Number.isFinite(value)) note({ floorOf: name, floor: value })
}

/** Names a peer or a part that could not be measured. */
export const skipped = (name, reason) => note({ skipped: name, reason: String(reason).split('\n')[0] })

export const isMet = ({ most, least }, value) => (most === undefined ? value >= least : value <= most)

/** What all parts reported: one row for each goal, in order, and what was skipped. */
export function collect(path) {
  const entries = existsSync(path)
    ? readFileSync(path, 'utf8')
        .split('\n')
        .filter((line) => line !== '')
        .map((line) => JSON.parse(line))
    : []
  const rows = Object.entries(GOALS).map(([name, goal]) => {
    const found = entries.findLast((entry) => entry.name === name)
    const state = found === undefined ? 'not measured' : isMet(goal, found.value) ? 'met' : 'missed'
    const least = entries.findLast(({ floorOf }) => floorOf === name)
    return { name, ...goal, value: found?.value, p99: found?.p99, floor: least?.floor, state }
  })
  return { rows, skipped: entries.filter((entry) => entry.skipped !== undefined) }
}

export const shown = (value) =>
  value >= 1000 ? Math.round(value).toLocaleString('en-US') : value.toPrecision(3)

/** The closing table. */
export function goalTable({ rows, skipped }, isPart = false) {
  const wanted = isPart ? rows.filter(({ value }) => value !== undefined) : rows
  const lines = wanted.map(({ name, value, most, least, unit = '', p99, floor, state }) => {
    const limit = most === undefined ? `≥ ${shown(least)}` : `≤ ${shown(most)}`
    const measured = value === undefined ? '–' : `${shown(value)}${unit && ` ${unit}`}`
    const tail = p99 === undefined ? '' : `  p99 ${shown(p99)}${unit && ` ${unit}`}`
    const lowest = floor === undefined ? '' : `  floor ${shown(floor)}${unit && ` ${unit}`}`
    return `${state.padEnd(13)} ${name.padEnd(62)} ${measured.padStart(10)}  goal ${limit}${unit && ` ${unit}`}${tail}${lowest}`
  })
  const missing = skipped.map(({ skipped, reason }) => `not run: ${skipped}: ${reason}`)
  return [...lines, ...missing].join('\n')
}

/** One line of the history: when, which commit, which machine, which values. */
export function historyLine({ rows }, root) {
  let commit = 'unknown'
  try {
    commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { cwd: root, encoding: 'utf8' }).trim()
  } catch {
    // not a clone
  }
  const machine = {
    cpu: cpus()[0]?.model ?? 'unknown',
    cores: cpus().length,
    memory_gb: Math.round(totalmem() / 2 ** 30),
    kernel: release(),
    node: process.versions.node,
  }
  const column = (field) =>
    Object.fromEntries(
      rows
        .filter((row) => row[field] !== undefined)
        .map((row) => [row.name, Number(row[field].toPrecision(4))]),
    )
  const line = {
    time: new Date().toISOString(),
    commit,
    machine,
    values: column('value'),
    p99: column('p99'),
    floors: column('floor'),
  }
  return `${JSON.stringify(line)}\n`
}
