import { type RefObject, useEffect, useRef } from 'react'
import { Link } from './link.tsx'

/** Links to the sections of a page. */
export function Tabs(props: {
  readonly label: string
  readonly base: string
  readonly current: string
  readonly tabs: readonly (readonly [path: string, name: string])[]
}) {
  const row = useCurrentInView(props.current)
  return (
    <nav className="tabs" aria-label={props.label} ref={row}>
      {props.tabs.map(([path, name]) => (
        <Link
          to={`${props.base}${path === '' ? '' : `/${path}`}`}
          key={path}
          current={props.current === path}
        >
          {name}
        </Link>
      ))}
    </nav>
  )
}

/** Scrolls the current link of a row into view, where the row is wider than the screen. */
export function useCurrentInView(current: string): RefObject<HTMLElement | null> {
  const row = useRef<HTMLElement>(null)
  // biome-ignore lint/correctness/useExhaustiveDependencies: runs again when another link becomes current
  useEffect(() => {
    row.current?.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'center' })
  }, [current])
  return row
}
