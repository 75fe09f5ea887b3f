import type { ReactNode } from 'react'
import { ScrollX } from './scroll-x.tsx'

/** A column: its heading and the class of its header cell. A hidden heading is read by screen readers only. */
export type Column = { readonly name: string; readonly className?: string; readonly isHidden?: boolean }

/** A table that scrolls sideways on narrow screens. */
export function Table(props: {
  readonly label: string
  readonly columns: readonly Column[]
  readonly children: ReactNode
}) {
  return (
    <ScrollX label={props.label}>
      <table>
        <thead>
          <tr>
            {props.columns.map(({ name, className, isHidden }) => (
              <th scope="col" key={name} className={className}>
                {isHidden ? <span className="hidden">{name}</span> : name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{props.children}</tbody>
      </table>
    </ScrollX>
  )
}
