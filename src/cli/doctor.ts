import { release } from 'node:os'
import type { Backend } from '../backends/backend.ts'
import { agentPath, compose } from '../compose/compose.ts'
import { diagnose, type HostNote } from '../host/diagnose.ts'
import { observeHost } from '../host/host-state.ts'
import { GUARANTEE_NAMES } from '../model/guarantee.ts'
import { visible, visibleJson } from '../model/visible.ts'
import { imageJson, imageLine } from './image.ts'
import { parseOptions } from './options.ts'
import { outStyled } from './terminal/output.ts'

type Row = {
  readonly name: string
  readonly available: boolean
  readonly level: string
  readonly guarantees: readonly string[]
  readonly emulated: boolean
  readonly start_ms: number | null
  readonly reason: string | null
  readonly fix: string | null
}

/** `ringfence doctor`: every backend is started once, now; nothing is taken from memory. */
export async function doctor(args: readonly string[]): Promise<number> {
  const { values } = parseOptions('doctor', args, {})
  const ringfence = await compose({ config: values.config, policy: values.policy })
  const rows: Row[] = []
  for (const backend of ringfence.registry.list()) {
    const probe = await ringfence.registry.probe(backend.name, { fresh: true })
    rows.push({
      name: backend.name,
      available: probe.available,
      level: backend.level,
      guarantees: probe.available ? probe.guarantees : [],
      emulated: backend.emulated,
      start_ms: probe.available ? Math.round(probe.startMs * 10) / 10 : null,
      reason: probe.available ? noteOf(backend) : probe.reason,
      fix: probe.available ? null : probe.fix,
    })
  }
  const notes = diagnose(await observeHost(agentPath()))
  const { ImageStore } = await import('../backends/images/store.ts')
  const images = new ImageStore(ringfence.stateDir).list()
  const report = {
    backends: rows,
    images: images.map(imageJson),
    node: process.version,
    kernel: release(),
    notes,
  }
  const shown = images.map((one) => `  ${visible(imageLine(one))}\n`).join('')
  const text = `${table(rows, report)}${shown && `\nimages:\n${shown}`}${notesText(notes)}`
  outStyled(values.json ? `${visibleJson(report)}\n` : text)
  return rows.some((row) => row.available && row.level !== 'native') ? 0 : 125
}

function noteOf({ byNameOnly, emulated, onRequest }: Backend): string | null {
  if (emulated) return 'emulated: slow, only by name'
  if (byNameOnly) return 'only by name'
  return onRequest ? 'when --backend, --image or --min-isolation asks for it' : null
}

function table(rows: readonly Row[], host: { readonly node: string; readonly kernel: string }): string {
  const colour = process.stdout.isTTY
    ? (code: number, text: string) => `\x1b[${code}m${text}\x1b[0m`
    : (_: number, text: string) => text
  const lines = rows.map((row) => {
    const state = row.available ? colour(32, 'available') : colour(31, 'missing  ')
    const start = row.start_ms ? `${String(row.start_ms).padStart(6)} ms` : '         '
    const note = row.available
      ? `${row.guarantees.length} of ${GUARANTEE_NAMES.length} guarantees${row.reason ? `, ${row.reason}` : ''}`
      : `${row.reason}`
    return `  ${row.name.padEnd(12)} ${row.level.padEnd(9)} ${state} ${start}  ${note}${row.fix ? `\n${' '.repeat(25)}fix: ${row.fix}` : ''}`
  })
  const best = rows.find((row) => row.available && row.level !== 'native')
  const kept = best
    ? `\n${best.name} keeps here:\n  ${wrap(best.guarantees)}\n`
    : '\nno wall on this host: nothing will be run\n'
  return `node ${host.node}, kernel ${host.kernel}\n\n  ${'backend'.padEnd(12)} ${'level'.padEnd(9)} ${'here'.padEnd(9)} ${'start'.padStart(9)}\n${lines.join('\n')}\n${kept}`
}

/** What is to be known about this host, with what to do about it. */
function notesText(notes: readonly HostNote[]): string {
  const lines = notes.map(({ weight, text, fix }) => {
    const todo =
      fix === undefined ? '' : `\n           fix: ${fix.trimEnd().replaceAll('\n', '\n           ')}`
    return `  ${weight.padEnd(8)} ${text}${todo}\n`
  })
  return lines.length === 0 ? '' : `\nthis host:\n${lines.join('')}`
}

const wrap = (names: readonly string[]): string =>
  names.map((name, index) => name + ((index + 1) % 6 === 0 ? '\n ' : '')).join(' ')
