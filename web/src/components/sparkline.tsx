import { memo } from 'react'

const WIDTH = 72
const HEIGHT = 20
/** Samples that fit in the width. */
const SAMPLES = 60

/** The latest samples as a line; `label` describes them to screen readers. */
export const Sparkline = memo(function Sparkline(props: {
  readonly values: readonly number[]
  readonly max?: number
  readonly label: string
}) {
  const { values, label } = props
  const max = Math.max(props.max ?? 0, ...values, 1e-9)
  const step = WIDTH / (SAMPLES - 1)
  const start = WIDTH - (values.length - 1) * step
  const points = values
    .map((value, index) => {
      const y = HEIGHT - 2 - (value / max) * (HEIGHT - 4)
      return `${(start + index * step).toFixed(1)},${y.toFixed(1)}`
    })
    .join(' ')
  return (
    <svg
      className="sparkline"
      width={WIDTH}
      height={HEIGHT}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      role="img"
      aria-label={label}
    >
      <line className="base" x1={0} x2={WIDTH} y1={HEIGHT - 1.5} y2={HEIGHT - 1.5} />
      {values.length > 1 && (
        <>
          <polygon className="fill" points={`${start.toFixed(1)},${HEIGHT} ${points} ${WIDTH},${HEIGHT}`} />
          <polyline points={points} />
        </>
      )}
    </svg>
  )
})
