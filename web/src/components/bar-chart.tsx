import { memo } from 'react'

const BAR_WIDTH = 5
const HEIGHT = 40
const MIN_BARS = 24

/** One bar per value, oldest first; failed ones are marked. */
export const BarChart = memo(function BarChart(props: {
  readonly values: readonly number[]
  readonly failed: readonly boolean[]
  readonly label: string
}) {
  const { values, failed } = props
  const max = Math.max(...values, 1)
  return (
    <svg
      className="bars"
      viewBox={`0 0 ${Math.max(values.length, MIN_BARS) * BAR_WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={props.label}
    >
      {values.map((value, index) => {
        const height = Math.max(1.5, (value / max) * (HEIGHT - 2))
        return (
          <rect
            key={index}
            x={index * BAR_WIDTH}
            y={HEIGHT - height}
            width={BAR_WIDTH - 1}
            height={height}
            className={failed[index] ? 'failed' : ''}
          />
        )
      })}
    </svg>
  )
})
