import type { Period } from './lanes.ts'

type Point = readonly [at: number, value: number]
const WIDTH = 1000
const HEIGHT = 60

/** One measure over the whole period as an area, with the scale on its left. */
export function UsageChart(props: {
  readonly name: string
  readonly points: readonly Point[]
  readonly period: Period
  /** The top of the scale if all values are below it. */
  readonly least: number
  readonly format: (value: number) => string
}) {
  const { name, points, period, format } = props
  const max = niceCeiling(Math.max(props.least, ...points.map(([, value]) => value)))
  const line = points.map(([at, value]) => `${xOf(at, period).toFixed(1)},${yOf(value, max).toFixed(1)}`)
  const [first, last] = [points[0], points.at(-1)]
  return (
    <div className="lane chart">
      <div className="lane-name">
        {name}
        <span className="scale" aria-hidden="true">
          <span>{format(max)}</span>
          <span>{format(max / 2)}</span>
          <span>0</span>
        </span>
      </div>
      <div className="lane-body">
        <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
          <line className="grid" x1={0} x2={WIDTH} y1={HEIGHT / 2} y2={HEIGHT / 2} />
          {first && last && (
            <polygon
              points={`${xOf(first[0], period)},${HEIGHT} ${line.join(' ')} ${xOf(last[0], period)},${HEIGHT}`}
            />
          )}
          <polyline points={line.join(' ')} />
        </svg>
        {points.length === 0 && <span className="dim">Not measured yet</span>}
      </div>
    </div>
  )
}

const xOf = (at: number, { from, to }: Period): number => ((at - from) / (to - from)) * WIDTH
const yOf = (value: number, max: number): number => HEIGHT - (value / max) * (HEIGHT - 2)

/** The next 1, 2 or 5 times a power of ten. */
function niceCeiling(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value))
  return ([1, 2, 5].find((step) => step * power >= value) ?? 10) * power
}
