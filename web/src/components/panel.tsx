import { type ReactNode, useId } from 'react'

/** A titled box, the building block of every page. */
export function Panel(props: {
  readonly title: ReactNode
  readonly aside?: ReactNode
  readonly children: ReactNode
  readonly className?: string
}) {
  const id = useId()
  return (
    <section className={`panel ${props.className ?? ''}`} aria-labelledby={id}>
      <div className="panel-head">
        <h2 id={id}>{props.title}</h2>
        {props.aside}
      </div>
      {props.children}
    </section>
  )
}
