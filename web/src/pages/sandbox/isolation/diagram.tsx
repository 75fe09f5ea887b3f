import type { Wall } from '../../../../../src/client/console-types.ts'
import { ScrollX } from '../../../components/scroll-x.tsx'
import { plural, safeLine } from '../../../format.ts'
import {
  type Crossing,
  hostCrossings,
  insideLines,
  networkCrossings,
  truncateEnd,
  truncateStart,
} from './crossings.ts'
import { StackedDiagram } from './stacked-diagram.tsx'

const WIDTH = 960
const ROW_HEIGHT = 30
/** The left and right edge of the boundary. */
const LEFT = 286
const RIGHT = 674
const CENTER = (LEFT + RIGHT) / 2
const LAYER_GAP = 6
const MAX_LAYERS = 7

/** The host on the left, the network on the right, the sandbox between them; arrows show the access it has. */
export function IsolationDiagram({ wall }: { readonly wall: Wall }) {
  const host = hostCrossings(wall)
  const network = networkCrossings(wall)
  const layers = Math.min(wall.layers.length, MAX_LAYERS)
  const height = Math.max(host.length, network.length, 5) * ROW_HEIGHT + 96
  const shared = { height, depth: 22 + layers * LAYER_GAP }
  const label = description(wall, host, network)
  return (
    <>
      <ScrollX className="diagram" label="Isolation diagram">
        <svg viewBox={`0 0 ${WIDTH} ${height}`} role="img" aria-label={label}>
          <ArrowMarker />
          <Headings wall={wall} />
          <LayerOutlines count={layers} height={height} />
          <Inside lines={insideLines(wall)} middle={height / 2 + 16} />
          <Crossings rows={host} side="left" {...shared} />
          <Crossings rows={network} side="right" {...shared} />
        </svg>
      </ScrollX>
      <StackedDiagram wall={wall} label={label} />
    </>
  )
}

const ArrowMarker = () => (
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
)

function Headings({ wall }: { readonly wall: Wall }) {
  return (
    <>
      <text x={12} y={22} className="side-title">
        Host
      </text>
      <text x={WIDTH - 12} y={22} className="side-title" textAnchor="end">
        Network
      </text>
      <text x={CENTER} y={22} className="side-title" textAnchor="middle">
        {wall.backend} · {wall.level} · {plural(wall.layers.length, 'layer')}
      </text>
    </>
  )
}

function LayerOutlines({ count, height }: { readonly count: number; readonly height: number }) {
  return Array.from({ length: count }, (_, index) => {
    const inset = index * LAYER_GAP
    return (
      <rect
        key={index}
        className={index === 0 ? 'layer outer' : 'layer'}
        x={LEFT + inset}
        y={36 + inset}
        width={RIGHT - LEFT - 2 * inset}
        height={height - 48 - 2 * inset}
        rx={18 - index}
      />
    )
  })
}

function Inside({ lines, middle }: { readonly lines: readonly string[]; readonly middle: number }) {
  return lines.map((line, index) => (
    <text
      key={line}
      x={CENTER}
      y={middle + (index - (lines.length - 1) / 2) * 22}
      textAnchor="middle"
      className={index === 0 ? 'inside-title' : 'inside-line'}
    >
      {line}
    </text>
  ))
}

type Side = 'left' | 'right'

function Crossings(props: {
  readonly rows: readonly Crossing[]
  readonly height: number
  readonly side: Side
  /** How far an arrow reaches into the sandbox. */
  readonly depth: number
}) {
  const { rows, height, side, depth } = props
  const first = 56 + (height - 56 - rows.length * ROW_HEIGHT) / 2
  return rows.map((crossing, index) => {
    const y = first + index * ROW_HEIGHT
    return (
      <g key={`${crossing.text}${crossing.note}`} className={`crossing ${crossing.direction}`}>
        {crossing.title && <title>{safeLine(crossing.title)}</title>}
        <CrossingText crossing={crossing} side={side} y={y} />
        {crossing.direction === 'none' ? (
          <BlockedLine side={side} y={y} />
        ) : (
          <Arrow direction={crossing.direction} side={side} y={y} depth={depth} />
        )}
      </g>
    )
  })
}

const MAX_TEXT = 32
/** Where the lines start, outside the boundary. */
const outerEnd = (side: Side): number => (side === 'left' ? LEFT - 28 : RIGHT + 28)

function CrossingText({
  crossing,
  side,
  y,
}: {
  readonly crossing: Crossing
  readonly side: Side
  readonly y: number
}) {
  const { text, note, direction } = crossing
  const isLeft = side === 'left'
  const position = { x: outerEnd(side) + (isLeft ? -8 : 8), textAnchor: isLeft ? 'end' : 'start' } as const
  const truncate = isLeft ? truncateStart : truncateEnd
  const sign = direction === 'none' ? '✕ ' : direction === 'both' ? '⇄ ' : ''
  return (
    <>
      <text {...position} y={y - 2} className="crossing-text">
        {truncate(safeLine(text), MAX_TEXT)}
      </text>
      <text {...position} y={y + 11} className="crossing-note">
        {sign}
        {note}
      </text>
    </>
  )
}

function Arrow(props: {
  readonly direction: Crossing['direction']
  readonly side: Side
  readonly y: number
  readonly depth: number
}) {
  const { direction, side, y, depth } = props
  return (
    <line
      x1={outerEnd(side)}
      x2={side === 'left' ? LEFT + depth : RIGHT - depth}
      y1={y}
      y2={y}
      markerEnd={direction === 'out' ? undefined : 'url(#arrow)'}
      markerStart={direction === 'in' ? undefined : 'url(#arrow)'}
    />
  )
}

/** A dashed line that ends at a bar before the boundary. */
function BlockedLine({ side, y }: { readonly side: Side; readonly y: number }) {
  const end = side === 'left' ? LEFT - 6 : RIGHT + 6
  return (
    <>
      <line x1={outerEnd(side)} x2={end} y1={y} y2={y} className="blocked" />
      <line x1={end} x2={end} y1={y - 6} y2={y + 6} className="bar" />
    </>
  )
}

/** The diagram in words, for screen readers. */
function description(wall: Wall, host: readonly Crossing[], network: readonly Crossing[]): string {
  const list = (rows: readonly Crossing[]): string =>
    rows.map(({ text, note }) => `${safeLine(text)} (${note})`).join(', ')
  return `${wall.backend} isolation with ${plural(wall.layers.length, 'layer')}. Host: ${list(host)}. Network: ${list(network)}.`
}
