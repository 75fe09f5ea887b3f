import { useVirtualizer, type Virtualizer } from '@tanstack/react-virtual'
import { type ReactNode, useCallback, useEffect, useRef } from 'react'
import { useShortcuts } from '../browser/keyboard.ts'

/** Rows rendered above and below the visible ones. */
const OVERSCAN = 12

/** A long table that renders only the rows in view. All rows have the same height. */
export function VirtualTable(props: {
  readonly count: number
  readonly rowHeight: number
  readonly label: string
  /** Column headings; the class of a column is the prefix and its name. */
  readonly columns: readonly string[]
  readonly columnPrefix: string
  readonly className?: string
  readonly row: (index: number) => ReactNode
  readonly rowKey: (index: number) => string | number
  readonly onEndReached?: () => void
  readonly empty?: ReactNode
}) {
  const { count, rowHeight } = props
  const box = useRef<HTMLDivElement>(null)
  const virtualizer = useVirtualizer({
    count,
    getScrollElement: () => box.current,
    estimateSize: () => rowHeight,
    overscan: OVERSCAN,
    // Rows are rendered before the box has been measured.
    initialRect: { width: 0, height: 800 },
  })
  useRowShortcuts(virtualizer)
  useEndReached(virtualizer, props.onEndReached)
  return (
    <div
      className={`list ${props.className ?? ''}`}
      role="table"
      aria-label={props.label}
      aria-rowcount={count + 1}
    >
      <HeaderRow columns={props.columns} prefix={props.columnPrefix} />
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: scrollable content must be reachable by keyboard */}
      <div className="scroll" role="rowgroup" ref={box} tabIndex={0} aria-label={props.label}>
        {count === 0 && <EmptyRow>{props.empty}</EmptyRow>}
        <div className="rows" role="presentation" style={{ height: virtualizer.getTotalSize() }}>
          {virtualizer.getVirtualItems().map(({ index, start, size }) => (
            <div
              className="row"
              role="row"
              aria-rowindex={index + 2}
              key={props.rowKey(index)}
              data-row={index}
              style={{ top: start, height: size }}
            >
              {props.row(index)}
            </div>
          ))}
        </div>
      </div>
    </div>
  )
}

function HeaderRow({ columns, prefix }: { readonly columns: readonly string[]; readonly prefix: string }) {
  return (
    <div className="row head" role="row">
      {columns.map((name) => (
        <span role="columnheader" key={name} className={prefix + name.toLowerCase().replace(' ', '-')}>
          {name}
        </span>
      ))}
    </div>
  )
}

const EmptyRow = ({ children }: { readonly children: ReactNode }) => (
  <div role="row">
    <div role="cell">{children}</div>
  </div>
)

type RowVirtualizer = Virtualizer<HTMLDivElement, Element>

function useEndReached(virtualizer: RowVirtualizer, onEndReached: (() => void) | undefined): void {
  const { count } = virtualizer.options
  const lastRendered = virtualizer.getVirtualItems().at(-1)?.index ?? -1
  useEffect(() => {
    if (lastRendered >= count - 1 - OVERSCAN) onEndReached?.()
  }, [lastRendered, count, onEndReached])
}

/** j and k move the focus from row to row, so that Enter and screen readers work as usual. */
function useRowShortcuts(virtualizer: RowVirtualizer): void {
  const current = useRef(-1)
  const move = useCallback(
    (step: number) => {
      const box = virtualizer.scrollElement
      const { count } = virtualizer.options
      if (!box || count === 0) return
      const focused = document.activeElement?.closest?.<HTMLElement>('[data-row]')
      const start = focused && box.contains(focused) ? Number(focused.dataset.row) : current.current
      const index = Math.max(0, Math.min(count - 1, start + step))
      current.current = index
      virtualizer.scrollToIndex(index, { align: 'auto' })
      // After the row has been rendered.
      setTimeout(() => {
        box.querySelector<HTMLElement>(`[data-row="${index}"] :is(a, button)`)?.focus({ preventScroll: true })
      }, 20)
    },
    [virtualizer],
  )
  useShortcuts([
    { keys: 'j, ArrowDown', label: 'Next row', run: () => move(1) },
    { keys: 'k, ArrowUp', label: 'Previous row', run: () => move(-1) },
  ])
}
