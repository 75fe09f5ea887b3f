/**
 * Writes the table and the picture of docs/performance.md from bench/history.jsonl: the last run, and each goal over time.
 * `npm run bench` calls it after a complete run.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { GOALS, isMet, shown } from '../bench/goals.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const START = '<!-- measured: generated -->'
const END = '<!-- /measured -->'

const runsIn = (text) =>
  text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line))

const goalText = ({ most, least, unit = '' }) =>
  `${most === undefined ? `≥ ${shown(least)}` : `≤ ${shown(most)}`}${unit && ` ${unit}`}`

/** The last run that measured a goal. */
const lastOf = (runs, name) => runs.findLast(({ values }) => values[name] !== undefined)

function table(runs) {
  const rows = Object.entries(GOALS).map(([name, goal]) => {
    const run = lastOf(runs, name)
    const value = run?.values[name]
    const p99 = run?.p99?.[name]
    const floor = run?.floors?.[name]
    const unit = goal.unit ? ` ${goal.unit}` : ''
    const cells = [
      name,
      value === undefined ? 'not measured' : `${shown(value)}${unit}`,
      p99 === undefined ? '' : `${shown(p99)}${unit}`,
      floor === undefined ? '' : `${shown(floor)}${unit}`,
      goalText(goal),
      value === undefined ? '' : isMet(goal, value) ? 'met' : '**missed**',
    ]
    return `| ${cells.join(' | ')} |`
  })
  const { time, commit, machine } = runs.at(-1)
  return [
    '| measured | median | p99 | floor | goal | |',
    '|---|---|---|---|---|---|',
    ...rows,
    '',
    `Measured ${time.slice(0, 10)} at commit \`${commit}\`: ${machine.cores} cores, ${machine.memory_gb} GB, Linux ${machine.kernel}, Node ${machine.node}. For a ratio, p99 is our 99th percentile ÷ the peer's median. Floor: the same without Ringfence's own code (a Node server that only starts plain bubblewrap, or only stores and sends the file; the processor time of E2B's client; a pipe in Node that answers CONNECT instead of the proxy), measured in the same run.`,
  ].join('\n')
}

const ROW = 26
const LEFT = 420
const WIDTH = 900
const TOP = 56

/** The position of a value relative to its goal on a logarithmic axis from a tenth to ten times the goal; right is worse. */
function position({ most, least }, value) {
  const ratio = most === undefined ? least / value : value / most
  const share = (Math.log10(Math.min(10, Math.max(0.1, ratio))) + 1) / 2
  return LEFT + share * (WIDTH - LEFT - 90)
}

const escaped = (text) => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;')

function pictureRow(name, goal, runs, at) {
  const y = TOP + at * ROW
  const points = runs
    .filter(({ values }) => values[name] !== undefined)
    .map(({ values }) => ({ value: values[name], x: position(goal, values[name]) }))
  const last = points.at(-1)
  const color = last && isMet(goal, last.value) ? '#2c8a4b' : '#c03a2b'
  const line = points.map(({ x }) => `${x.toFixed(1)},${y}`).join(' ')
  const earlier = points
    .slice(0, -1)
    .map(({ x }) => `<circle cx="${x.toFixed(1)}" cy="${y}" r="3.5" fill="#ffffff" stroke="#8696a7"/>`)
  return [
    `<text x="${LEFT - 14}" y="${y + 4}" text-anchor="end" font-size="12" fill="#1d2733">${escaped(name)}</text>`,
    points.length > 1 ? `<polyline points="${line}" stroke="#8696a7" fill="none"/>` : '',
    ...earlier,
    last
      ? `<circle cx="${last.x.toFixed(1)}" cy="${y}" r="5" fill="${color}"/><text x="${WIDTH - 14}" y="${y + 4}" text-anchor="end" font-size="12" fill="${color}">${shown(last.value)}${goal.unit ? ` ${goal.unit}` : ''}</text>`
      : '',
  ].join('')
}

function picture(runs) {
  const rows = Object.entries(GOALS)
  const height = TOP + rows.length * ROW + 24
  const axis = [0.1, 1, 10].map((ratio) => {
    const x = position({ most: 1 }, ratio)
    const label = ratio === 1 ? 'goal' : ratio < 1 ? '10 × better' : '10 × worse'
    return `<line x1="${x}" y1="${TOP - 18}" x2="${x}" y2="${height - 24}" stroke="${ratio === 1 ? '#2f6fc4' : '#d5dde5'}"/><text x="${x}" y="${TOP - 24}" text-anchor="middle" font-size="12" fill="#5b6b7c">${label}</text>`
  })
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" width="${WIDTH}" height="${height}" role="img" font-family="system-ui, sans-serif">
<title>Each benchmark relative to its goal: earlier runs are open circles, the last run is filled</title>
<rect width="${WIDTH}" height="${height}" rx="12" fill="#ffffff"/>
${axis.join('\n')}
${rows.map(([name, goal], at) => pictureRow(name, goal, runs, at)).join('\n')}
</svg>
`
}

/** Writes both files anew. */
export function writePerformance() {
  const runs = runsIn(readFileSync(join(root, 'bench', 'history.jsonl'), 'utf8'))
  const page = join(root, 'docs', 'performance.md')
  const text = readFileSync(page, 'utf8')
  const [before, after] = [text.slice(0, text.indexOf(START)), text.slice(text.indexOf(END))]
  writeFileSync(page, `${before}${START}\n${table(runs)}\n${after}`)
  writeFileSync(join(root, 'docs', 'images', 'performance.svg'), picture(runs))
}

if (process.argv[1] === fileURLToPath(import.meta.url)) writePerformance()
