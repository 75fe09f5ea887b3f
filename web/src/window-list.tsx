import {
  type ReactNode,
  type RefObject,
  useCallback,
  useEffect,
  useLayoutEffect,
  useRef,
  useState,
} from 'react'
import { useShortcuts } from './keyboard.ts'

/** A long list of which only what is in sight is drawn. Rows have one height; the list scrolls with its own box. */

const EXTRA = 12

export type WindowListProps = {
  readonly count: number
  readonly rowHeight: number
  readonly label: string
  readonly head?: ReactNode
  readonly className?: string
  readonly row: (index: number) => ReactNode
  readonly rowKey: (index: number) => string | number
  /** Called when the end comes near. */
  readonly onEnd?: () => void
  readonly empty?: ReactNode
  /** j and k walk here. */
  readonly walks?: boolean
}

function useView(box: RefObject<HTMLDivElement | null>): { readonly top: number; readonly height: number } {
  const [view, setView] = useState({ top: 0, height: 800 })
  useLayoutEffect(() => {
    const element = box.current
    if (!element) return
    const look = (): void => setView({ top: element.scrollTop, height: element.clientHeight })
    look()
    element.addEventListener('scroll', look, { passive: true })
    const sizes = new ResizeObserver(look)
    sizes.observe(element)
    return () => {
      element.removeEventListener('scroll', look)
      sizes.disconnect()
    }
  }, [box])
  return view
}

export function WindowList(props: WindowListProps) {
  const { count, rowHeight, onEnd } = props
  const box = useRef<HTMLDivElement>(null)
  const view = useView(box)
  const from = Math.max(0, Math.floor(view.top / rowHeight) - EXTRA)
  const to = Math.min(count, Math.ceil((view.top + view.height) / rowHeight) + EXTRA)
  useWalk(box, count, rowHeight, props.walks !== false)
  useEffect(() => {
    if (to >= count - EXTRA) onEnd?.()
  }, [to, count, onEnd])
  const rows: ReactNode[] = []
  for (let index = from; index < to; index++)
    rows.push(
      <div
        className="row"
        role="row"
        aria-rowindex={index + 2}
        key={props.rowKey(index)}
        data-row={index}
        style={{ top: index * rowHeight, height: rowHeight }}
      >
        {props.row(index)}
      </div>,
    )
  return (
    <div
      className={`list ${props.className ?? ''}`}
      role="table"
      aria-label={props.label}
      aria-rowcount={count + 1}
    >
      {props.head && (
        <div className="row head" role="row">
          {props.head}
        </div>
      )}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <div className="scroll" role="rowgroup" ref={box} tabIndex={0} aria-label={props.label}>
        {count === 0 ? (
          <div role="row">
            <div role="cell">{props.empty}</div>
          </div>
        ) : (
          <div className="rows" role="presentation" style={{ height: count * rowHeight }}>
            {rows}
          </div>
        )}
      </div>
    </div>
  )
}

/** Walks by moving the real focus, so that Enter and screen readers need no help. */
function useWalk(box: RefObject<HTMLDivElement | null>, count: number, rowHeight: number, on: boolean): void {
  const at = useRef(-1)
  const go = useCallback(
    (step: number) => {
      const element = box.current
      if (!element || count === 0) return
      const focused = document.activeElement?.closest?.<HTMLElement>('[data-row]')
      const start = focused && element.contains(focused) ? Number(focused.dataset.row) : at.current
      at.current = Math.max(0, Math.min(count - 1, start + step))
      const top = at.current * rowHeight
      if (top < element.scrollTop) element.scrollTop = top
      else if (top + rowHeight > element.scrollTop + element.clientHeight)
        element.scrollTop = top + rowHeight - element.clientHeight
      const index = at.current
      setTimeout(() => {
        element
          .querySelector<HTMLElement>(`[data-row="${index}"] :is(a, button)`)
          ?.focus({ preventScroll: true })
      }, 20)
    },
    [box, count, rowHeight],
  )
  useShortcuts(
    on
      ? [
          { keys: 'j, ArrowDown', does: 'next in the list', run: () => go(1) },
          { keys: 'k, ArrowUp', does: 'previous in the list', run: () => go(-1) },
        ]
      : [],
  )
}
