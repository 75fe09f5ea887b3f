import type { ReactNode } from 'react'
import { CopyableCode } from './copyable-code.tsx'

/** Says that there is nothing to show, and what to do about it. */
export function EmptyState(props: {
  readonly title: string
  readonly children?: ReactNode
  readonly command?: string
}) {
  return (
    <div className="empty">
      <strong>{props.title}</strong>
      {props.children && <p>{props.children}</p>}
      {props.command && <CopyableCode text={props.command} />}
    </div>
  )
}
