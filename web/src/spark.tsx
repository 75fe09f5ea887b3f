import { memo } from 'react'

/** A line of the latest figures; its text says the last one. */
export const Spark = memo(function Spark(props: {
  readonly values: readonly number[]
  readonly most?: number
  readonly label: string
}) {
  const { values, label } = props
  const width = 72
  const height = 20
  const most = Math.max(props.most ?? 0, ...values, 1e-9)
  const step = width / 59
  const start = width - (values.length - 1) * step
  const points = values.map(
    (value, index) =>
      `${(start + index * step).toFixed(1)},${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`,
  )
  return (
    <svg
      className="spark"
      width={width}
      height={height}
      viewBox={`0 0 ${width} ${height}`}
      role="img"
      aria-label={label}
    >
      <line className="base" x1={0} x2={width} y1={height - 1.5} y2={height - 1.5} />
      {points.length > 1 && (
        <>
          <polygon
            className="fill"
            points={`${start.toFixed(1)},${height} ${points.join(' ')} ${width},${height}`}
          />
          <polyline points={points.join(' ')} />
        </>
      )}
    </svg>
  )
})

/** Bars for runs, oldest first. */
export const Bars = memo(function Bars(props: {
  readonly values: readonly number[]
  readonly bad?: readonly boolean[]
  readonly label: string
}) {
  const { values } = props
  const most = Math.max(...values, 1)
  return (
    <svg
      className="bars"
      viewBox={`0 0 ${Math.max(values.length, 24) * 5} 40`}
      preserveAspectRatio="none"
      role="img"
      aria-label={props.label}
    >
      {values.map((value, index) => {
        const height = Math.max(1.5, (value / most) * 38)
        return (
          <rect
            key={index}
            x={index * 5}
            y={40 - height}
            width={4}
            height={height}
            className={props.bad?.[index] ? 'bad' : ''}
          />
        )
      })}
    </svg>
  )
})
