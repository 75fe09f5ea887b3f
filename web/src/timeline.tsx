import { useRef, useState } from 'react'
import { clock } from './format.ts'

const BUCKETS = 60
const WIDTH = 720
const HEIGHT = 56

type Brush = readonly [from: number, to: number]

/** Bars over time with a stretch that can be chosen, by pointer or by keys. */
export function Timeline(props: {
  readonly times: readonly number[]
  readonly end: number
  readonly lengthMs: number
  readonly brush: Brush | undefined
  readonly onBrush: (brush: Brush | undefined) => void
}) {
  const { times, end, lengthMs, brush, onBrush } = props
  const start = end - lengthMs
  const size = lengthMs / BUCKETS
  const counts = new Array<number>(BUCKETS).fill(0)
  for (const time of times) {
    const at = Math.min(BUCKETS - 1, Math.floor((time - start) / size))
    if (at >= 0) counts[at] = (counts[at] ?? 0) + 1
  }
  const most = Math.max(...counts, 3)
  const box = useRef<SVGSVGElement>(null)
  const [drag, setDrag] = useState<number | undefined>(undefined)
  const bucketAt = (clientX: number): number => {
    const { left, width } = (box.current as SVGSVGElement).getBoundingClientRect()
    return Math.max(0, Math.min(BUCKETS - 1, Math.floor(((clientX - left) / width) * BUCKETS)))
  }
  const choose = (a: number, b: number): void => {
    const [low, high] = [Math.max(0, Math.min(a, b)), Math.min(BUCKETS - 1, Math.max(a, b))]
    onBrush([start + low * size, start + (high + 1) * size - 1])
  }
  const chosen = brush && [Math.round((brush[0] - start) / size), Math.round((brush[1] - start) / size) - 1]
  const onKey = (event: React.KeyboardEvent): void => {
    const step = event.key === 'ArrowLeft' ? -1 : event.key === 'ArrowRight' ? 1 : 0
    if (event.key === 'Escape') onBrush(undefined)
    if (step === 0) return
    event.preventDefault()
    event.stopPropagation()
    const [low = BUCKETS - 5, high = BUCKETS - 1] = chosen ?? []
    if (event.shiftKey) choose(low, Math.max(low, high + step))
    else choose(low + step, high + step)
  }
  const text = `${times.length} in the last hour${brush ? `, chosen ${clock(new Date(brush[0]).toISOString())} to ${clock(new Date(brush[1]).toISOString())}` : ''}`
  return (
    <div className="timeline" data-own-keys="">
      <svg
        ref={box}
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="slider"
        aria-label="Stretch of the last hour"
        aria-valuemin={0}
        aria-valuemax={BUCKETS}
        aria-valuenow={chosen ? Math.max(0, Math.min(BUCKETS, chosen[0] ?? 0)) : 0}
        aria-valuetext={text}
        tabIndex={0}
        onKeyDown={onKey}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId)
          setDrag(bucketAt(event.clientX))
        }}
        onPointerMove={(event) => drag !== undefined && choose(drag, bucketAt(event.clientX))}
        onPointerUp={(event) => {
          if (drag !== undefined) choose(drag, bucketAt(event.clientX))
          setDrag(undefined)
        }}
      >
        {chosen && (
          <rect
            className="brush"
            x={((chosen[0] ?? 0) / BUCKETS) * WIDTH}
            width={Math.max(2, (((chosen[1] ?? 0) + 1 - (chosen[0] ?? 0)) / BUCKETS) * WIDTH)}
            y={0}
            height={HEIGHT}
          />
        )}
        {counts.map((value, index) => {
          const height = value === 0 ? 1 : Math.max(4, (value / most) * (HEIGHT - 6))
          return (
            <rect
              key={index}
              className={value === 0 ? 'none' : 'some'}
              x={(index / BUCKETS) * WIDTH + 1}
              width={WIDTH / BUCKETS - 2}
              y={HEIGHT - height}
              height={height}
            />
          )
        })}
      </svg>
      <div className="axis" aria-hidden="true">
        <span>{clock(new Date(start).toISOString()).slice(0, 5)}</span>
        <span>{clock(new Date(start + lengthMs / 2).toISOString()).slice(0, 5)}</span>
        <span>now</span>
      </div>
    </div>
  )
}
