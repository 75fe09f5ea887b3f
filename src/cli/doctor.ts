import { compose } from '../compose/compose.ts'
import { clusterNodes, doctorReport } from '../compose/doctor.ts'
import type { HostNote } from '../host/diagnose.ts'
import type { BackendView } from '../model/api/host.ts'
import { GUARANTEE_NAMES } from '../model/guarantee.ts'
import { visible, visibleJson } from '../model/text/visible.ts'
import { imageJson, imageLine } from './image.ts'
import { parseOptions } from './options/options.ts'
import { outStyled } from './terminal/output.ts'

/** `ringfence doctor`: starts every backend once; uses no cached result. */
export async function doctor(args: readonly string[]): Promise<number> {
  const { values } = parseOptions('doctor', args, {})
  const ringfence = await compose({ config: values.config, policy: values.policy })
  const found = await doctorReport(ringfence, ringfence.config.cluster && (() => clusterNodes(ringfence)))
  const { backends: rows, notes } = found
  const { ImageStore } = await import('../backends/images/store.ts')
  const images = new ImageStore(ringfence.stateDir).list()
  const report = { ...found, images: images.map(imageJson) }
  const shown = images.map((one) => `  ${visible(imageLine(one))}\n`).join('')
  const text = `${table(rows, report)}${shown && `\nimages:\n${shown}`}${notesText(notes)}`
  outStyled(values.json ? `${visibleJson(report)}\n` : text)
  return rows.some((row) => row.available && row.level !== 'native') ? 0 : 125
}

function table(
  rows: readonly BackendView[],
  host: { readonly node: string; readonly kernel: string },
): string {
  const colour = process.stdout.isTTY
    ? (code: number, text: string) => `\x1b[${code}m${text}\x1b[0m`
    : (_: number, text: string) => text
  const lines = rows.map((row) => {
    const state = row.available ? colour(32, 'available') : colour(31, 'missing  ')
    const start = row.start_ms ? `${String(row.start_ms).padStart(6)} ms` : '         '
    const note = row.available
      ? `${row.guarantees.length} of ${GUARANTEE_NAMES.length} guarantees${row.reason ? `, ${row.reason}` : ''}`
      : `${row.reason}`
    const proven = row.broken?.length
      ? `\n${' '.repeat(25)}${colour(31, `broken here: ${row.broken.join(', ')}`)} (ringfence prove, ${row.proven_at})`
      : row.proven_at
        ? `, proven ${row.proven_at.slice(0, 10)}`
        : ''
    return `  ${row.name.padEnd(12)} ${row.level.padEnd(9)} ${state} ${start}  ${note}${proven}${row.fix ? `\n${' '.repeat(25)}fix: ${row.fix}` : ''}`
  })
  const best = rows.find((row) => row.available && row.level !== 'native')
  const kept = best
    ? `\nguarantees ${best.name} provides on this host:\n  ${wrap(best.guarantees)}\n`
    : '\nno backend can isolate commands on this host: nothing will run\n'
  return `node ${host.node}, kernel ${host.kernel}\n\n  ${'backend'.padEnd(12)} ${'level'.padEnd(9)} ${'here'.padEnd(9)} ${'start'.padStart(9)}\n${lines.join('\n')}\n${kept}`
}

const SEVERITY = { stops: 'error', weakens: 'warning', tells: 'note' } as const

/** Findings about this host, each with its fix. */
function notesText(notes: readonly HostNote[]): string {
  const lines = notes.map(({ weight, text, fix }) => {
    const todo =
      fix === undefined ? '' : `\n           fix: ${fix.trimEnd().replaceAll('\n', '\n           ')}`
    return `  ${SEVERITY[weight].padEnd(8)} ${text}${todo}\n`
  })
  return lines.length === 0 ? '' : `\nthis host:\n${lines.join('')}`
}

const wrap = (names: readonly string[]): string =>
  names.map((name, index) => name + ((index + 1) % 6 === 0 ? '\n ' : '')).join(' ')
