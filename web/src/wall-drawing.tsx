import type { Wall } from '../../src/client/console-types.ts'
import { oneLine } from './format.ts'
import { ScrollX } from './ui.tsx'

/** The wall: the host's files on the left, the network on the right, and only what was granted crosses. */

const WIDTH = 960
const ROW = 30
const LEFT = 286
const RIGHT = 674
const MOST = 9

type Crossing = {
  readonly text: string
  readonly note: string
  readonly way: 'in' | 'both' | 'out' | 'none'
  readonly title?: string
}

const cut = (text: string, most: number): string =>
  text.length > most ? `…${text.slice(-(most - 1))}` : text
const cutEnd = (text: string, most: number): string =>
  text.length > most ? `${text.slice(0, most - 1)}…` : text

const SYSTEM = /^\/(usr|bin|sbin|lib\w*|etc|opt|nix|run|proc|dev|sys)(\/|$)/

/** What of the host is seen inside; the system's own directories are one line. */
export function fileCrossings(wall: Wall): readonly Crossing[] {
  const mounts = wall.mounts ?? []
  const system = mounts.filter(({ target, mode, own }) => mode === 'ro' && !own && SYSTEM.test(target))
  const rest = mounts.filter((mount) => !system.includes(mount))
  const rows: Crossing[] = rest.map(({ target, source, mode, own, review }) => ({
    text: target,
    note: own ? 'its own' : review ? 'changes wait' : mode === 'rw' ? 'can change' : 'reads only',
    way: mode === 'rw' && !review ? 'both' : 'in',
    title: source === null || source === target ? target : `${source} → ${target}`,
  }))
  if (system.length > 0)
    rows.push({
      text: `the host's tools`,
      note: `${system.length} reads only`,
      way: 'in',
      title: system.map(({ target }) => target).join('\n'),
    })
  for (const socket of wall.unix_sockets ?? []) rows.push({ text: socket, note: 'socket', way: 'both' })
  for (const mask of (wall.masks ?? []).slice(0, 2)) rows.push({ text: mask, note: 'hidden', way: 'none' })
  const hidden = (wall.masks ?? []).length - 2
  if (hidden > 0) rows.push({ text: `${hidden} more`, note: 'hidden', way: 'none' })
  if (wall.level === 'os' && system.length === 0)
    rows.push({ text: '/usr /etc …', note: 'programs and libraries, reads only', way: 'in' })
  if (wall.level !== 'native') {
    rows.push({ text: 'every other file', note: 'not there', way: 'none' })
    rows.push({ text: 'processes, sockets, devices', note: 'not there', way: 'none' })
  }
  return shortened(rows)
}

export function netCrossings(wall: Wall): readonly Crossing[] {
  const { mode = 'offline', allow_hosts: hosts = [] } = wall.network ?? {}
  const rows: Crossing[] = []
  if (mode === 'full') rows.push({ text: 'every address', note: 'no list', way: 'out' })
  if (mode === 'fetch')
    for (const host of hosts) rows.push({ text: host, note: 'through the proxy', way: 'out' })
  for (const { name, host } of wall.secrets ?? [])
    rows.push({ text: `${name} for ${host}`, note: 'value stays out', way: 'none' })
  if (mode === 'loopback') rows.push({ text: 'itself', note: 'loopback', way: 'none' })
  if (mode !== 'full')
    rows.push({ text: mode === 'fetch' ? 'everything else' : 'the network', note: 'closed', way: 'none' })
  rows.push({ text: 'ports inside', note: 'with a key', way: 'in' })
  return shortened(rows)
}

const shortened = (rows: readonly Crossing[]): readonly Crossing[] =>
  rows.length <= MOST
    ? rows
    : [
        ...rows.slice(0, MOST - 1),
        { text: `${rows.length - MOST + 1} more`, note: 'in the list below', way: 'none' },
      ]

export function WallDrawing({ wall }: { readonly wall: Wall }) {
  const files = fileCrossings(wall)
  const net = netCrossings(wall)
  const layers = Math.min(wall.layers.length, 7)
  const rows = Math.max(files.length, net.length, 5)
  const height = rows * ROW + 96
  const inner = 22 + layers * 6
  const middle = height / 2 + 16
  return (
    <ScrollX className="drawing" label="The wall, drawn">
      <svg viewBox={`0 0 ${WIDTH} ${height}`} role="img" aria-label={summary(wall, files, net)}>
        <defs>
          <marker
            id="arrow"
            viewBox="0 0 8 8"
            refX="7"
            refY="4"
            markerWidth="7"
            markerHeight="7"
            orient="auto-start-reverse"
          >
            <path d="M0 0 L8 4 L0 8 z" className="arrow" />
          </marker>
        </defs>
        <text x={12} y={22} className="side-title">
          the host
        </text>
        <text x={WIDTH - 12} y={22} className="side-title" textAnchor="end">
          the network
        </text>
        <text x={(LEFT + RIGHT) / 2} y={22} className="side-title" textAnchor="middle">
          {wall.backend} · {wall.level} · {wall.layers.length} layers
        </text>
        {Array.from({ length: layers }, (_, index) => (
          <rect
            key={index}
            className={index === 0 ? 'wall outer' : 'wall'}
            x={LEFT + index * 6}
            y={36 + index * 6}
            width={RIGHT - LEFT - index * 12}
            height={height - 48 - index * 12}
            rx={18 - index}
          />
        ))}
        {insideOf(wall).map((line, index, all) => (
          <text
            key={line}
            x={(LEFT + RIGHT) / 2}
            y={middle + (index - (all.length - 1) / 2) * 22}
            textAnchor="middle"
            className={index === 0 ? 'in-main' : 'in-line'}
          >
            {line}
          </text>
        ))}
        <Side rows={files} height={height} side="left" inner={inner} />
        <Side rows={net} height={height} side="right" inner={inner} />
      </svg>
    </ScrollX>
  )
}

function insideOf(wall: Wall): readonly string[] {
  const { limits = {} } = wall
  const limit = [
    limits.cpus && `${limits.cpus} CPU`,
    limits.memoryMb && `${limits.memoryMb} MB`,
    limits.pids && `${limits.pids} processes`,
  ].filter(Boolean)
  return [
    cut(oneLine(wall.cwd ?? ''), 26),
    wall.run_as ? `user ${wall.run_as.uid}` : 'no privileges',
    `${wall.env?.length ?? 0} variables, ${wall.secrets?.length ?? 0} secrets`,
    ...(limit.length > 0 ? [limit.join(' · ')] : []),
    `${wall.protection?.length ?? 0} protected names`,
  ]
}

function Side(props: {
  readonly rows: readonly Crossing[]
  readonly height: number
  readonly side: 'left' | 'right'
  readonly inner: number
}) {
  const { rows, height, side, inner } = props
  const left = side === 'left'
  const start = 44 + (height - 56 - rows.length * ROW) / 2
  return rows.map(({ text, note, way, title }, index) => {
    const y = start + index * ROW + 12
    const outer = left ? LEFT - 28 : RIGHT + 28
    const wallEdge = left ? LEFT : RIGHT
    const inside = left ? LEFT + inner : RIGHT - inner
    const crosses = way !== 'none'
    return (
      <g key={`${text}${note}`} className={`crossing ${way}`}>
        {title && <title>{oneLine(title)}</title>}
        <text
          x={left ? outer - 8 : outer + 8}
          y={y - 2}
          textAnchor={left ? 'end' : 'start'}
          className="cross-text"
        >
          {left ? cut(oneLine(text), 32) : cutEnd(oneLine(text), 32)}
        </text>
        <text
          x={left ? outer - 8 : outer + 8}
          y={y + 11}
          textAnchor={left ? 'end' : 'start'}
          className="cross-note"
        >
          {way === 'none' ? `✕ ${note}` : way === 'both' ? `⇄ ${note}` : note}
        </text>
        {crosses ? (
          <line
            x1={outer}
            x2={inside}
            y1={y}
            y2={y}
            markerEnd={way === 'in' || way === 'both' ? 'url(#arrow)' : undefined}
            markerStart={way === 'out' || way === 'both' ? 'url(#arrow)' : undefined}
          />
        ) : (
          <>
            <line x1={outer} x2={wallEdge - (left ? 6 : -6)} y1={y} y2={y} className="stopped" />
            <line
              x1={wallEdge - (left ? 6 : -6)}
              x2={wallEdge - (left ? 6 : -6)}
              y1={y - 6}
              y2={y + 6}
              className="stop"
            />
          </>
        )}
      </g>
    )
  })
}

function summary(wall: Wall, files: readonly Crossing[], net: readonly Crossing[]): string {
  const say = (rows: readonly Crossing[]): string =>
    rows.map(({ text, note }) => `${oneLine(text)} (${note})`).join(', ')
  return `A ${wall.backend} wall of ${wall.layers.length} layers. From the host: ${say(files)}. To the network: ${say(net)}.`
}
