import { type KeyboardEvent, type PointerEvent, useRef, useState } from 'react'
import { formatTime } from '../format.ts'

const BUCKETS = 60
const WIDTH = 720
const HEIGHT = 56
/** Buckets that the arrow keys select first. */
const KEYBOARD_RANGE = 5

export type TimeRange = readonly [from: number, to: number]
type BucketRange = readonly [first: number, last: number]

type TimelineProps = {
  readonly times: readonly number[]
  readonly end: number
  readonly lengthMs: number
  readonly range: TimeRange | undefined
  readonly onSelect: (range: TimeRange | undefined) => void
}

/** Events over time as bars; a time range can be selected by dragging or with the arrow keys. */
export function Timeline(props: TimelineProps) {
  const { times, end, lengthMs, range } = props
  const start = end - lengthMs
  const { box, selected, handlers } = useRangeSelection(props)
  return (
    <div className="timeline" data-own-keys="">
      <svg
        ref={box}
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="slider"
        aria-label="Time range"
        aria-valuemin={0}
        aria-valuemax={BUCKETS}
        aria-valuenow={selected ? Math.max(0, Math.min(BUCKETS, selected[0])) : 0}
        aria-valuetext={`${times.length} in the last hour${range ? `, selected ${rangeText(range)}` : ''}`}
        tabIndex={0}
        {...handlers}
      >
        {selected && <Selection range={selected} />}
        <Bars counts={countsPerBucket(times, start, lengthMs)} />
      </svg>
      <div className="axis" aria-hidden="true">
        <span>{formatTime(start).slice(0, 5)}</span>
        <span>{formatTime(start + lengthMs / 2).slice(0, 5)}</span>
        <span>now</span>
      </div>
    </div>
  )
}

export const rangeText = ([from, to]: TimeRange): string => `${formatTime(from)} – ${formatTime(to)}`

function countsPerBucket(times: readonly number[], start: number, lengthMs: number): readonly number[] {
  const counts = new Array<number>(BUCKETS).fill(0)
  for (const time of times) {
    const bucket = Math.min(BUCKETS - 1, Math.floor(((time - start) / lengthMs) * BUCKETS))
    if (bucket >= 0) counts[bucket] = (counts[bucket] ?? 0) + 1
  }
  return counts
}

function useRangeSelection({ end, lengthMs, range, onSelect }: TimelineProps) {
  const start = end - lengthMs
  const size = lengthMs / BUCKETS
  const box = useRef<SVGSVGElement>(null)
  const [dragStart, setDragStart] = useState<number | undefined>(undefined)
  const bucketAt = ({ clientX }: PointerEvent): number => {
    const { left, width } = (box.current as SVGSVGElement).getBoundingClientRect()
    return Math.max(0, Math.min(BUCKETS - 1, Math.floor(((clientX - left) / width) * BUCKETS)))
  }
  const select = (a: number, b: number): void => {
    const [first, last] = [Math.max(0, Math.min(a, b)), Math.min(BUCKETS - 1, Math.max(a, b))]
    onSelect([start + first * size, start + (last + 1) * size - 1])
  }
  const selected: BucketRange | undefined = range && [
    Math.round((range[0] - start) / size),
    Math.round((range[1] - start) / size) - 1,
  ]
  const onKeyDown = (event: KeyboardEvent): void => {
    const step = event.key === 'ArrowLeft' ? -1 : event.key === 'ArrowRight' ? 1 : 0
    if (event.key === 'Escape') onSelect(undefined)
    if (step === 0) return
    event.preventDefault()
    event.stopPropagation()
    const [first, last] = selected ?? [BUCKETS - KEYBOARD_RANGE, BUCKETS - 1]
    if (event.shiftKey) select(first, Math.max(first, last + step))
    else select(first + step, last + step)
  }
  const onPointerDown = (event: PointerEvent): void => {
    event.currentTarget.setPointerCapture(event.pointerId)
    setDragStart(bucketAt(event))
  }
  const onPointerMove = (event: PointerEvent): void => {
    if (dragStart !== undefined) select(dragStart, bucketAt(event))
  }
  const onPointerUp = (event: PointerEvent): void => {
    onPointerMove(event)
    setDragStart(undefined)
  }
  return { box, selected, handlers: { onKeyDown, onPointerDown, onPointerMove, onPointerUp } }
}

function Selection({ range: [first, last] }: { readonly range: BucketRange }) {
  return (
    <rect
      className="selection"
      x={(first / BUCKETS) * WIDTH}
      width={Math.max(2, ((last + 1 - first) / BUCKETS) * WIDTH)}
      y={0}
      height={HEIGHT}
    />
  )
}

function Bars({ counts }: { readonly counts: readonly number[] }) {
  const max = Math.max(...counts, 3)
  return counts.map((count, index) => {
    const height = count === 0 ? 1 : Math.max(4, (count / max) * (HEIGHT - 6))
    return (
      <rect
        key={index}
        className={count === 0 ? 'none' : 'some'}
        x={(index / BUCKETS) * WIDTH + 1}
        width={WIDTH / BUCKETS - 2}
        y={HEIGHT - height}
        height={height}
      />
    )
  })
}
